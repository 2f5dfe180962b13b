"""Lead a trained skill through a course: `python -m experiments.ant_navigation`.

A planner gives the points of the course one by one, the skill pursues each until success, timeout
or no progress, and the outcome goes back to the planner. Prints a table and writes
navigation.json, segments.npz and paths.png. With `--words` the sub-goals are given in words; those
that cannot be read are refused one by one, with status 2 if there was no other. The status does
not say whether a place was reached: navigation.json does.
"""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from envs.goals import GoalSimulator, goal_simulator
from envs.text.scores import wilson_interval
from envs.vector import VectorEnv
from experiments.evaluate_skill import skill_of_run
from jaxagent.agents.hierarchy import (
    Episodes,
    Hierarchy,
    Outcome,
    PursuitConfig,
    SkillAction,
    SubGoalSegments,
    Verdict,
    Waypoints,
)
from jaxagent.agents.text_hierarchy import Attempt, TextEpisode, TextHierarchy
from jaxagent.models.skills import load_skill
from jaxagent.planning.goal_text import parse_sub_goal, resolve_sub_goal
from jaxagent.training.config import parse_command_line, refuse
from jaxagent.training.devices import prepare_cpu_devices, use_compilation_cache
from jaxagent.training.evaluate import write_report
from jaxagent.training.plots import plot_paths

PROGRAM = "python -m experiments.ant_navigation"
MOST_WORDS = 1000  # sub-goals that a planner on the standard input may give
COURSE = "3,0 5.5,1.5 7,4 6.5,7 4,9"


@dataclasses.dataclass(frozen=True)
class NavigationConfig:
    """Options of the navigation."""

    skill: str = "ant_goal"
    """A shipped skill by its name, a skill file, or the run folder of one."""
    course: str = COURSE
    """Points to reach in order, metres: "X,Y X,Y ...", the start being near 0,0."""
    words: str | None = None
    """Sub-goals in words, separated by semicolons, instead of a course: "go north 3 metres;
    turn left 90 degrees; go forward 2 metres". A single - reads them line by line from the
    standard input, and says after each how it went."""
    radius: float | None = None
    """A point counts as reached within this, metres; None is what the skill was trained on."""
    starts: int = 100
    """Episodes of a course, each from its own start state."""
    attempts: int = 2
    """Sub-goals that may fail at one point of a course before it is given up."""
    seed: int = 0
    """Of the start states."""
    out: str = "runs/navigation"
    """Folder for what is written."""
    pursuit: PursuitConfig = dataclasses.field(default_factory=PursuitConfig)

    def __post_init__(self):
        for name in ("starts", "attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed ({self.seed}) must lie in [0, 2^31)")
        read_course(self.course)


def read_course(text: str) -> np.ndarray:
    """Points [M, 2] from "X,Y X,Y ...".

    Raises:
        ValueError: no point, or one that is not two finite numbers.
    """
    points = []
    for word in text.split():
        try:
            x, y = (float(number) for number in word.split(","))
        except ValueError:
            x = y = np.nan
        if not np.isfinite([x, y]).all():
            raise ValueError(f"course ({word}) must be points X,Y of two finite numbers")
        points.append((x, y))
    if not points:
        raise ValueError(f"course ({text!r}) must have at least one point")
    return np.array(points, np.float32)


def open_skill(name: str, radius: float | None) -> tuple[GoalSimulator, SkillAction]:
    """A trained skill, and the task it is for, going on after a success.

    Args:
        name: of a shipped skill, a skill file, or a run folder.
        radius: a goal counts as reached within this, metres; None is as in training.

    Raises:
        ValueError: there is none, its goals are no points of the plane, or a radius that cannot be.
    """
    folder = pathlib.Path(name)
    skill = skill_of_run(folder, None) if folder.is_dir() else load_skill(name)
    threshold = skill.meta["threshold"] if radius is None else radius
    simulator = goal_simulator(
        skill.meta["task"], skill.meta["backend"], threshold=threshold, on_success="hold"
    )
    if simulator.spec.goal_size != 2:
        raise ValueError(
            f"skill ({name}) must reach points of the plane; its goals are "
            f"{simulator.spec.goal_size} number(s)"
        )
    return simulator, lambda observation, keys: skill.act(observation)


def navigate(
    simulator: GoalSimulator, skill: SkillAction, points: np.ndarray, config: NavigationConfig
) -> Episodes:
    """The course from every start, on the device."""
    most = len(points) * config.attempts
    length = most * config.pursuit.timeout_steps
    agent = Hierarchy(
        env=VectorEnv(simulator, length + 1),
        aim=simulator.aim,
        skill=skill,
        planner=Waypoints(jnp.asarray(points), config.attempts),
        config=config.pursuit,
        max_segments=most,
    )
    keys = jax.random.split(jax.random.key(config.seed), config.starts)
    return jax.device_get(jax.jit(functools.partial(agent.play, length=length))(keys))


def summarise(episodes: Episodes, count: int) -> dict:
    """What the episodes of a course of `count` points came to, in numbers."""
    completed = np.asarray(episodes.verdict == Verdict.COMPLETE)
    segments = episodes.segments
    low, high = wilson_interval(int(completed.sum()), len(completed))
    fell = ((segments.outcome == Outcome.FELL) & segments.mask).any(axis=0)
    steps = episodes.steps.mask.sum(axis=0)
    return {
        "starts": len(completed),
        "points": count,
        "completed": float(completed.mean()),
        "completed_interval": [low, high],
        "fell": float(fell.mean()),
        "points_reached": float((segments.outcome == Outcome.SUCCESS).sum(axis=0).mean()),
        "steps_when_completed": float(steps[completed].mean()) if completed.any() else None,
        "sub_goals": {
            kind.name.lower(): int(((segments.outcome == kind) & segments.mask).sum())
            for kind in Outcome
            if kind != Outcome.RUNNING
        },
    }


def table(summary: dict) -> Table:
    """The summary for people."""
    shown = Table("starts", "completed", "95 % interval", "fell", "points reached", "steps")
    low, high = summary["completed_interval"]
    steps = summary["steps_when_completed"]
    shown.add_row(
        str(summary["starts"]),
        f"{summary['completed']:.0%}",
        f"{low:.0%} to {high:.0%}",
        f"{summary['fell']:.0%}",
        f"{summary['points_reached']:.1f} of {summary['points']}",
        "-" if steps is None else f"{steps:,.0f}",
    )
    return shown


def paths(episodes: Episodes) -> np.ndarray:
    """[B, T + 1, 2] metres; rows after an episode's end repeat its last."""
    mask, moved = np.asarray(episodes.steps.mask), np.asarray(episodes.steps.achieved_goal)
    last = np.maximum(mask.sum(axis=0), 1) - 1
    row = np.minimum(np.arange(len(mask))[:, None], last[None])
    moved = np.take_along_axis(moved, row[..., None], axis=0)
    return np.concatenate([np.asarray(episodes.start)[None], moved]).swapaxes(0, 1)


def save_segments(folder: pathlib.Path, segments: SubGoalSegments) -> None:
    """Write the segments, one array a field, for credit assignment."""
    arrays: dict[str, Any] = {name: np.asarray(x) for name, x in segments._asdict().items()}
    np.savez(folder / "segments.npz", **arrays)


def run_course(simulator: GoalSimulator, skill: SkillAction, config: NavigationConfig) -> None:
    """Play, print, write."""
    points, folder = read_course(config.course), pathlib.Path(config.out)
    episodes = navigate(simulator, skill, points, config)
    summary = summarise(episodes, len(points))
    folder.mkdir(parents=True, exist_ok=True)
    write_report(folder / "navigation.json", dataclasses.asdict(config) | summary)
    save_segments(folder, episodes.segments)
    radius = simulator.spec.threshold
    title = f"{config.skill}: {summary['completed']:.0%} of {config.starts} starts complete"
    plot_paths(folder / "paths.png", paths(episodes), [(x, y, radius) for x, y in points], title)
    Console(highlight=False).print(table(summary))


def run_words(simulator: GoalSimulator, skill: SkillAction, config: NavigationConfig) -> bool:
    """One episode led by words; whether there was anything in them to do."""
    radius = simulator.spec.threshold

    def read(words: str, position: tuple[float, float], heading: float):
        return resolve_sub_goal(parse_sub_goal(words), position, heading, radius=radius)

    script = None if config.words == "-" else _script(config.words)
    most = MOST_WORDS if script is None else len(script)
    env = VectorEnv(simulator, MOST_WORDS * config.pursuit.timeout_steps + 1)
    agent = TextHierarchy(env, simulator.aim, skill, read, config.pursuit, max_segments=most)
    planner = _listen if script is None else _recite(script)
    episode = agent.play(planner, "walk", jax.random.key(config.seed))
    _report_words(episode, config, radius)
    return not episode.attempts or bool(np.asarray(episode.segments.mask).any())


def _report_words(episode: TextEpisode, config: NavigationConfig, radius: float) -> None:
    folder = pathlib.Path(config.out)
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in episode.attempts:
        print(f"{attempt.sub_goal}: {attempt.result}")
    told = [attempt._asdict() for attempt in episode.attempts]
    report = dataclasses.asdict(config) | {"attempts": told, "verdict": episode.verdict.name}
    write_report(folder / "navigation.json", report)
    save_segments(folder, episode.segments)
    goals = np.asarray(episode.segments.goal)[np.asarray(episode.segments.mask)]
    targets = [(x, y, radius) for x, y in goals]
    plot_paths(folder / "paths.png", episode.path[None], targets, f"{config.skill}, in words")


def _script(words: str | None) -> list[str]:
    return [line.strip() for line in (words or "").split(";") if line.strip()]


def _recite(lines: list[str]) -> Callable[[str, str, Sequence[Attempt]], str | None]:
    """A planner that says its lines whatever happens."""
    rest = iter(lines)
    return lambda observation, task, attempts: next(rest, None)


def _listen(observation: str, task: str, attempts: Sequence[Attempt]) -> str | None:
    """A planner at the other end of the standard input; its end is the end of the task."""
    if attempts:
        print(attempts[-1].result, flush=True)
    print(f"{observation}; next sub-goal?", flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Navigate; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    config = parse_command_line(
        NavigationConfig, arguments, NavigationConfig(), PROGRAM, __doc__ or ""
    )
    prepare_cpu_devices()
    use_compilation_cache()
    try:
        if config.words not in (None, "-") and not 0 < len(_script(config.words)) <= MOST_WORDS:
            raise ValueError(f"words ({config.words[:40]!r}) must have 1 to {MOST_WORDS} sub-goals")
        simulator, skill = open_skill(config.skill, config.radius)
    except ValueError as error:
        refuse(str(error))
    if config.words is None:
        run_course(simulator, skill, config)
    elif not run_words(simulator, skill, config):
        refuse(f"words ({config.words}): every sub-goal was refused; nothing was walked")
    return 0


if __name__ == "__main__":
    sys.exit(main())
