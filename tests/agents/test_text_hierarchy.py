"""The hierarchical agent with a planner of words, on the real grammar."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.vector import VectorEnv
from jaxagent.agents.hierarchy import Hierarchy, Outcome, PursuitConfig, Verdict, Waypoints
from jaxagent.agents.text_hierarchy import TextHierarchy
from jaxagent.losses import duration_credit
from jaxagent.planning.goal_text import parse_sub_goal, resolve_sub_goal
from tests.agents.plane import PointBody, point_task, straight

QUICK = PursuitConfig(timeout_steps=30, stall_steps=8, stall_distance=0.1, discount_factor=0.9)


def agent(episode_length: int = 1000, **changes) -> TextHierarchy:
    task = {name: changes.pop(name) for name in ("edge", "wall") if name in changes}
    simulator = point_task(**task)

    def read(words, position, heading):
        command = parse_sub_goal(words)
        return resolve_sub_goal(command, position, heading, radius=simulator.spec.threshold)

    env = VectorEnv(simulator, episode_length)
    return TextHierarchy(env, simulator.aim, straight, read, QUICK, **changes)


class Script:
    """Says its lines in order, and remembers what it was told."""

    def __init__(self, *lines):
        self.lines, self.told = list(lines), []

    def __call__(self, observation, task, attempts):
        self.told.append((observation, task, attempts))
        return self.lines.pop(0) if self.lines else None


@pytest.fixture(scope="module")
def walker():
    return agent()


def test_words_become_a_walk_and_outcomes_go_back(walker):
    # It begins a little off (0, 0), so the way to (3, 0) is not quite east.
    script = Script("move to (3, 0)", "turn left 90 degrees", "go forward 3 metres", "stop")
    episode = walker.play(script, "walk", jax.random.key(0))
    assert episode.verdict == Verdict.COMPLETE
    observation, task, attempts = script.told[-1]
    assert task == "walk"
    assert [words for words, _ in attempts] == [
        "move to (3, 0)", "turn left 90 degrees", "go forward 3 metres", "stop",
    ]  # fmt: skip
    assert attempts[0].result.startswith("reached after ")
    assert attempts[1].result == "forward is now 91 degrees from east; the body does not turn"
    assert attempts[3].result.startswith("stopped after 0 steps")  # this body has no momentum
    assert "facing 0 degrees from east; forward is 91 degrees" in observation
    np.testing.assert_allclose(episode.path[-1], [3.0, 3.0], atol=0.6)
    assert "facing 0 degrees" in script.told[0][0]


def test_segments_are_arrays_for_credit(walker):
    script = Script("move to (3, 0)", "turn left 90 degrees", "go forward 3 metres")
    segments = walker.play(script, "walk", jax.random.key(0)).segments
    assert segments.mask[:, 0].tolist() == [True] * 2 + [False] * 18  # a turn walks nowhere
    assert (segments.outcome[:2] == Outcome.SUCCESS).all()
    np.testing.assert_array_equal(segments.start[1], segments.duration[0])
    credit = duration_credit(jnp.ones(1), segments.duration, segments.mask)
    np.testing.assert_allclose(credit.sum(), 1.0, rtol=1e-6)


def test_it_is_the_hierarchy_on_the_device_in_words(walker):
    """The same start and the same points give the same segments."""
    key = jax.random.key(3)
    points = jnp.array([[3.0, 0.0], [3.0, 3.0], [0.0, 3.0]])
    spoken = walker.play(Script(*(f"move to ({x}, {y})" for x, y in points)), "", key)
    simulator = point_task()
    device = Hierarchy(
        VectorEnv(simulator, 1000), simulator.aim, straight, Waypoints(points), QUICK, 20
    )
    played = jax.jit(device.play, static_argnums=1)(key[None], 100)
    start = np.asarray(played.start)[0]
    np.testing.assert_allclose(spoken.path[0], start, atol=1e-6)
    for ours, theirs in zip(spoken.segments, played.segments):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_refusal_goes_back_with_its_reason_and_three_in_a_row_give_up(walker):
    script = Script("fly away", "go north 1 metre", "fly", "dance", "sing", "go north 1 metre")
    episode = walker.play(script, "", jax.random.key(0))
    assert episode.verdict == Verdict.GIVE_UP
    assert script.lines == ["go north 1 metre"]
    assert "refused: sub-goal ('fly away') must read move to (X, Y)" in episode.attempts[0].result
    assert episode.segments.mask.sum() == 1


def test_what_stops_it_is_told():
    wall = agent(wall=1.0)
    script = Script("move to (3, 0)", "go north 1 metre")
    episode = wall.play(script, "", jax.random.key(0))
    assert "no more progress" in episode.attempts[0].result
    assert episode.segments.outcome[:2, 0].tolist() == [Outcome.NO_PROGRESS, Outcome.SUCCESS]


def test_a_fall_ends_the_episode():
    script = Script("move to (3, 0)", "go north 1 metre")
    episode = agent(edge=2.0).play(script, "", jax.random.key(0))
    assert episode.verdict == Verdict.GO_ON
    assert script.lines == ["go north 1 metre"]
    assert episode.attempts[0].result.startswith("fell after ")
    assert episode.segments.discount[0, 0] == 0.0
    assert episode.path[-1][0] > 2.0  # where it fell, not where it would start again


def test_the_last_segment_ends_the_episode(walker):
    few = agent(max_segments=2)
    episode = few.play(Script(*["turn left 10 degrees"] * 5), "", jax.random.key(0))
    assert len(episode.attempts) == 2
    assert episode.verdict == Verdict.GO_ON
    with pytest.raises(ValueError, match=r"max_refusals \(0\) must be at least 1"):
        agent(max_refusals=0)


@pytest.mark.parametrize(
    ("words", "end"),
    [
        (("go north 3 metres", "go forward 2 metres"), (0.0, 5.0)),
        (("go north 3 metres", "go left 2 metres"), (-2.0, 3.0)),
        (("move to (-2, 0)", "go forward 2 metres"), (-4.0, 0.0)),
        (("go north 3 metres", "go back 1 metre", "go forward 1 metre"), (0.0, 1.0)),
        (("go north 3 metres", "turn right 90 degrees", "go forward 2 metres"), (2.0, 3.0)),
        (("go north 3 metres", "stop", "go forward 2 metres"), (0.0, 5.0)),
        (("go forward 2 metres",), (2.0, 0.0)),  # where the body faces at the start
    ],
)
def test_forward_is_the_way_of_the_last_move_or_turn(walker, words, end):
    episode = walker.play(Script(*words), "", jax.random.key(0))
    np.testing.assert_allclose(episode.path[-1], end, atol=0.9)  # 0.3 a sub-goal
    assert episode.verdict == Verdict.COMPLETE


class Coasting(PointBody):
    """Keeps nine tenths of its speed from step to step, and faces where it moves."""

    def reset(self, key):
        return self._moving(jnp.zeros(2), jnp.array([0.0, 4.0]))

    def step(self, state, action):
        speed = 0.9 * state.body.velocity[:2]
        return self._moving(state.observation + 0.05 * speed, speed)

    def _moving(self, place, speed):
        state = self._state(place)
        ahead = speed / jnp.linalg.norm(speed)
        body = state.body._replace(velocity=jnp.append(speed, 0.0), heading=ahead)
        return state.replace(body=body)


def coasting(**options):
    task = point_task()
    simulator = dataclasses.replace(task, simulator=Coasting())

    def read(words, position, heading):
        return resolve_sub_goal(parse_sub_goal(words), position, heading, radius=0.3)

    return TextHierarchy(
        VectorEnv(simulator, 1000), simulator.aim, straight, read, QUICK, **options
    )


def test_a_stop_succeeds_when_the_body_stands_and_not_before():
    """4 m/s · 0.9ⁿ < 1 first for n = 14."""
    script = Script("stop")
    config = PursuitConfig(timeout_steps=30, stall_steps=30)
    agent = coasting(stop_speed=1.0)
    agent.config = config
    episode = agent.play(script, "", jax.random.key(0))
    assert episode.attempts[0].result.startswith("stopped after 14 steps")
    assert episode.segments.duration[0, 0] == 14
    assert episode.segments.outcome[0, 0] == Outcome.SUCCESS


def test_a_body_that_goes_on_moving_has_not_stopped():
    episode = coasting(stop_speed=1e-3).play(Script("stop"), "", jax.random.key(0))
    assert episode.attempts[0].result.startswith("not stopped, still moving at 1.7 metres a second")
    assert episode.segments.outcome[0, 0] == Outcome.NO_PROGRESS


def test_the_planner_is_told_where_the_body_really_faces():
    script = Script("turn right 90 degrees")
    coasting().play(script, "", jax.random.key(0))
    first, after = (told[0] for told in script.told)
    assert first.endswith("facing 90 degrees from east; forward is 90 degrees")
    assert after.endswith("facing 90 degrees from east; forward is 0 degrees")


def test_a_speed_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"stop_speed \(0\) must be a positive, finite number"):
        agent(stop_speed=0)
