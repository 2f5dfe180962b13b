"""Train a Brax Ant with action guidance: `python -m experiments.ant_guidance`.

R_total = R_env + lambda * R_guidance, the three always logged apart, every evaluation without
guidance. Two tasks: `run` (Brax's reward) and `corner` (sparse: arrive within 1 m of (10, 10)).
"""

import contextlib
import dataclasses
import json
import pathlib
import sys
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from envs.ant import ant
from envs.brax_env import BraxSimulator
from envs.skeleton import skeleton
from envs.vector import VectorEnv
from experiments.ant_config import AntConfig, continued, read_command_line, read_config
from experiments.ant_plan import (
    EAST,
    begin_plan,
    check_endpoint,
    make_guide,
    plan_beforehand,
    plan_capacity,
)
from experiments.run_kinds import check_kind
from jaxagent.agents.ppo import PPO
from jaxagent.planning.backends import is_endpoint
from jaxagent.planning.goal_planner import describe_plan
from jaxagent.planning.guidance import Guidance
from jaxagent.planning.plan_guide import PlanGuide
from jaxagent.planning.plans import dump_plan
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.config import refuse, to_plain
from jaxagent.training.devices import (
    AXIS,
    Layout,
    choose_layout,
    join_processes,
    local_chunk,
    prepare_cpu_devices,
    use_compilation_cache,
)
from jaxagent.training.ending import exit_status
from jaxagent.training.evaluate import write_report
from jaxagent.training.inputs import Source, keep_inputs, run_files
from jaxagent.training.interruption import leave_on_signals
from jaxagent.training.loop import Arm
from jaxagent.training.metrics import read_metrics
from jaxagent.training.plan_follower import PLAN_FILE, PlanFollower
from jaxagent.training.plots import plot_curves, plot_paths
from jaxagent.training.progress import Reporter
from jaxagent.training.render import write_gif, write_html
from jaxagent.training.run_folder import CONFIG_FILE, open_run_folder, record_of, write_config
from jaxagent.training.trainer import Evaluation, Trainer, TrainState
from jaxagent.training.trials import ARMS, compare_arms, removal_test
from jaxagent.types import Plan, Simulator


def build(
    config: AntConfig, layout: Layout, teacher=None, plan: Plan | None = None
) -> tuple[Trainer, Plan]:
    """Bind environments, agent and guidance.

    Args:
        config: what to build.
        layout: devices.
        teacher: action distribution to distil from.
        plan: to begin with; None is the one that can be made without a language model.
    """
    simulator = ant(config.task, config.backend)
    run = config.run
    if run.evaluation_episodes % layout.size:
        raise ValueError(
            f"evaluation_episodes ({run.evaluation_episodes}) must be divisible by the number of "
            f"devices ({layout.size})"
        )
    plan = plan or plan_beforehand(config)
    evaluation_chunk = (
        local_chunk(run.evaluation_episodes // layout.size) if layout.chunk_size else None
    )
    agent = PPO(
        config.ppo,
        observation_size=simulator.observation_size,
        action_size=simulator.action_size,
        num_updates=config.num_updates,
        axis_name=AXIS,
        teacher=teacher,
    )
    guidance = Guidance(
        config.guidance,
        plan,
        discount_factor=config.ppo.discount_factor,
        axis_name=AXIS,
        plan_capacity=plan_capacity(config),
    )
    trainer = Trainer(
        env=VectorEnv(simulator, run.episode_length, layout.chunk_size),
        evaluation_env=VectorEnv(simulator, run.episode_length, evaluation_chunk),
        pose=simulator.pose,
        agent=agent,
        guidance=guidance,
        layout=layout,
        num_envs=run.num_envs,
        unroll_length=run.unroll_length,
        num_iterations=run.num_iterations,
        evaluation_episodes=run.evaluation_episodes,
        evaluation_length=run.episode_length,
    )
    return trainer, plan


def load_run(
    folder: pathlib.Path,
    num_devices: int | None = None,
    iteration: int | None = None,
    episodes: int | None = None,
) -> tuple[AntConfig, Trainer, TrainState]:
    """A run as it was saved: configuration, what it was made of, and its state.

    Args:
        folder: a run folder, or one arm of a comparison.
        num_devices: as in RunConfig; the devices need not be those that trained.
        iteration: of the checkpoint; None is the last.
        episodes: evaluate on this many instead of as many as in training.

    Raises:
        ValueError: not a run folder, or its checkpoint cannot be used (CheckpointError).
    """
    path = folder / CONFIG_FILE
    if not path.exists() and not (folder / "checkpoints").is_dir():
        raise ValueError(f"{folder} is not a run folder: it has no {CONFIG_FILE}")
    if not (folder / "checkpoints").is_dir() and (folder / ARMS[0]).is_dir():
        raise ValueError(f"{folder} is a comparison: name one of its arms, {folder / ARMS[0]}")
    config = read_config(folder)
    if episodes is not None:
        run = dataclasses.replace(config.run, evaluation_episodes=episodes)
        config = dataclasses.replace(config, run=run)
    layout = choose_layout(config.run.num_envs, config.ppo.shuffle_groups, num_devices)
    trainer, _ = build(config, layout)
    like = trainer.abstract_state(config.run.num_seeds)
    checkpoints = Checkpoints(folder / "checkpoints", config.run.checkpoints_kept)
    try:
        state, _ = checkpoints.restore(like, trainer.shardings(like), iteration)
    finally:
        checkpoints.close()
    return config, trainer, state


def load_teacher(config: AntConfig):
    """The action distribution of a run's first seed, as a function of raw observations.

    Args:
        config: of the student; without a teacher, None is returned.

    Raises:
        ValueError: not a run, or one that sees or does something else.
    """
    if config.distill_from is None:
        return None
    folder, simulator = pathlib.Path(config.distill_from), ant(config.task, config.backend)
    check_kind(folder, "ant_guidance")
    _, trainer, state = load_run(folder)
    theirs = trainer.env.observation_size, trainer.env.action_size
    ours = simulator.observation_size, simulator.action_size
    if theirs != ours:
        raise ValueError(
            f"distill_from ({folder}): the teacher has {theirs} observations and actions, "
            f"the student {ours}"
        )
    learnt = jax.tree.map(lambda x: np.asarray(x[0]), jax.device_get(state.agent))
    return lambda observation: trainer.agent.distribution(learnt, observation)


def picture(
    folder: pathlib.Path, simulator: Simulator, evaluation: Evaluation, plan: Plan, title: str
) -> None:
    """Write rollout.gif, rollout.html and paths.png of an evaluation's first seed."""
    length = int(evaluation.episode_length[0, 0])
    body = getattr(simulator, "simulator", simulator)
    if isinstance(body, BraxSimulator):
        drawn = skeleton(body, np.asarray(evaluation.pose)[0, 0, :length])
        write_gif(folder / "rollout.gif", drawn, title)
        write_html(folder / "rollout.html", drawn, title)
    targets = [(*goal.target, goal.radius) for goal in plan.sub_goals if goal.target != EAST]
    plot_paths(folder / "paths.png", np.asarray(evaluation.path)[0], targets[:20], title)


def describe(config: AntConfig, layout: Layout, trainer: Trainer, plan: Plan) -> str:
    """What the configuration amounts to."""
    run, ppo = config.run, config.ppo
    batch = run.num_envs * run.unroll_length
    updates = run.num_iterations * ppo.num_epochs * ppo.num_minibatches
    like = trainer.abstract_state(1)
    count = sum(
        np.prod(x.shape)
        for x in jax.tree.leaves((like.agent.policy_params, like.agent.critic_params))
    )
    guidance = ", ".join(config.guidance.guidance_terms) or "none"
    if config.asks_model:
        guidance += f", planned by {config.planner}"
    elif config.guidance.needs_plan:
        guidance += f", {len(plan.sub_goals)} sub-goals by {plan.source}"
    guidance += (
        f"; lambda {config.guidance.lambda_schedule} from {config.guidance.guidance_lambda:g}"
    )
    if config.distill_from:
        guidance = f"none; distilled from the teacher in {config.distill_from}"
    return (
        f"task {config.task} ({trainer.env.observation_size} observations, "
        f"{trainer.env.action_size} actions), {config.backend} physics\n"
        f"devices: {layout.describe()}\n"
        f"{run.num_envs} environments x {run.unroll_length} steps = {batch:,} a batch; "
        f"{run.num_iterations:,} iterations, {updates:,} gradient steps of "
        f"{batch // ppo.num_minibatches:,}; {int(count):,} parameters; {run.num_seeds} seed(s)\n"
        f"guidance: {guidance}"
    )


def train_arms(config: AntConfig, folder: pathlib.Path, layout: Layout, reporter: Reporter) -> None:
    """Train what the configuration asks for, in its folder, to the end."""
    guide = make_guide(config, folder)
    with guide or contextlib.nullcontext():
        _train_arms(config, folder, layout, reporter, guide)


def _train_arms(
    config: AntConfig,
    folder: pathlib.Path,
    layout: Layout,
    reporter: Reporter,
    guide: PlanGuide | None,
) -> None:
    arms = {arm: folder / arm for arm in ARMS} if config.compare else {ARMS[0]: folder}
    first_arm = arms[ARMS[0]]
    simulator = ant(config.task, config.backend)
    teacher = load_teacher(config)
    if guide:
        reporter.say(f"asking {config.planner} for a plan")
    trainer, plan = build(config, layout, teacher, begin_plan(config, guide, first_arm))
    plans = PlanFollower(guide, trainer, first_arm) if guide else None
    reporter.say(describe(config, layout, trainer, plan))
    if guide:
        reporter.say(f"plan: {describe_plan(plan)}")
    reporter.say(f"run folder: {folder}")
    open_folders(config, dict.fromkeys((folder, *arms.values())), plan)
    seeds = range(config.run.seed, config.run.seed + config.run.num_seeds)
    programs = trainer.compile(trainer.init(list(seeds)))
    reporter.say(f"compiled in {programs.compile_seconds:.0f} s")

    def draw(where: pathlib.Path, evaluation: Evaluation) -> None:
        followed = guide.plan if guide else plan
        draw_curves(config, where, followed if where == first_arm else None)
        latest[where] = evaluation

    latest: dict[pathlib.Path, Evaluation] = {}
    for arm, place in arms.items():
        if config.compare:
            reporter.say(f"arm: {arm}")
        guided = arm == ARMS[0] and teacher is None
        training = Arm(
            trainer, programs, config.run, place, reporter, guided, draw, record_of(config),
            plans=plans if guided else None,
        )  # fmt: skip
        state, _ = training.train(resume=config.resume)
        if plans and guided:
            plan = plans.guide.plan
            reporter.say(plans.tell())
        if place in latest:  # process 0
            picture(place, simulator, latest[place], plan, f"{config.task}, {arm}")
        if config.removal_test:
            removal_test(trainer, programs, state, config.run, config.removal_test, place, reporter)
    if config.compare and jax.process_index() == 0:
        success, threshold = (True, 0.8) if config.task == "corner" else (False, 2000.0)
        compare_arms(
            folder, f"{config.task}: with and without guidance", success, threshold, reporter
        )


def open_folders(config: AntConfig, folders: Iterable[pathlib.Path], plan: Plan) -> None:
    """Write what is known before training: the configuration, what it depends on, and the plan.

    A folder that has its configuration already is that of a run that is taken up.
    """
    for place in folders:
        if not (place / CONFIG_FILE).exists():
            sources = input_sources(config)
            given = {name: getattr(config, name) for name in sources}
            keep_inputs(place, sources, given)
            write_config(place, to_plain(config))
        if jax.process_index() == 0:
            write_report(place / PLAN_FILE, dump_plan(plan))


def input_sources(config: AntConfig) -> dict[str, Source]:
    """The files and folders that a run of this configuration depends on, by option."""
    sources: dict[str, Source] = {}
    planner = pathlib.Path(config.planner)
    if config.planner != "rule" and not is_endpoint(config.planner) and planner.exists():
        sources["planner"] = planner
    if config.distill_from is not None:
        sources["distill_from"] = run_files(pathlib.Path(config.distill_from))
    return sources


def draw_curves(config: AntConfig, folder: pathlib.Path, plan: Plan | None) -> None:
    """Write curves.png, with the plan that is followed now under it."""
    title = f"{folder.name}: {config.task}, {config.guidance.lambda_schedule} lambda"
    followed = plan if config.guidance.needs_plan else None
    caption = f"plan: {describe_plan(followed)}" if followed else ""
    plot_curves(folder / "curves.png", read_metrics(folder / "metrics.jsonl"), title, caption)


@leave_on_signals()
def main(arguments: Sequence[str] | None = None) -> int:
    """Train; the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    prepare_cpu_devices()
    config = read_command_line(arguments, "cpu")
    try:
        join_processes(config.run.coordinator, config.run.num_processes, config.run.process_id)
        if jax.default_backend() != "cpu":
            config = read_command_line(arguments, "gpu")
        folder = open_run_folder(config.run, f"ant-{config.task}", config.resume)
        if config.resume:
            config = continued(folder, arguments)
        layout = choose_layout(
            config.run.num_envs, config.ppo.shuffle_groups, config.run.num_devices
        )
        if config.dry_run:
            check_endpoint(config)
            trainer, plan = build(config, layout, load_teacher(config))
            print(json.dumps(to_plain(config), indent=2))
            print(describe(config, layout, trainer, plan))
            return 0
        use_compilation_cache()
        return exit_status(folder, lambda: train_arms(config, folder, layout, Reporter()))
    except ValueError as error:
        refuse(str(error))


if __name__ == "__main__":
    sys.exit(main())
