"""The removal test: it names a policy that learnt the guidance, and one that learnt the task."""

import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from envs.probe import ProbeSimulator
from jaxagent.agents.ppo import PPO, PPOConfig
from jaxagent.planning.guidance import Guidance, GuidanceConfig
from jaxagent.training.devices import AXIS
from jaxagent.training.loop import switch_guidance
from jaxagent.training.progress import Reporter
from jaxagent.training.trials import judge_removal, removal_test
from jaxagent.types import Plan, SubGoal
from tests.training.probe_run import make_trainer, run_config

RATE, ITERATIONS = 1e-2, 40
HACKED, HELPFUL = (60.0, 0.0), (0.0, 0.0)  # where guidance leads; the task is to be at 0


def tug():
    """A point on a line that begins at 3, moved by half the action, rewarded by −|x|/10.

    The optimum of 12 steps is −(2.5 + 2 + 1.5 + 1 + 0.5)/10 = −0.75; to walk off at full speed
    −(3.5 + ... + 9)/10 = −7.5, which pays 5 a step where guidance leads that way.
    """

    def advance(observation, action):
        after = observation + 0.5 * action
        return after, -0.1 * jnp.abs(after[0]), jnp.zeros((), bool)

    return ProbeSimulator("tug", 1, lambda key: jnp.full(1, 3.0), advance)


@pytest.fixture(scope="module", params=[HACKED, HELPFUL])
def trial(request, tmp_path_factory):
    """Where guidance led, and the report on a policy trained by it."""
    run = run_config(ITERATIONS)
    ppo = PPOConfig(
        policy_hidden_sizes=(8,), critic_hidden_sizes=(8,), num_minibatches=2, num_epochs=2,
        policy_learning_rate=RATE, critic_learning_rate=RATE, learning_rate_schedule="constant",
    )  # fmt: skip
    plan = Plan((SubGoal(request.param, 0.01),), "test")
    guidance = Guidance(
        GuidanceConfig(guidance_terms=("plan",)), plan, discount_factor=0.97, axis_name=AXIS
    )
    agent = PPO(ppo, observation_size=1, action_size=1, num_updates=1, axis_name=AXIS)
    trainer = dataclasses.replace(make_trainer(run, tug()), agent=agent, guidance=guidance)
    programs = trainer.compile(trainer.init([0]))
    states = []
    for switch in (1.0, 0.0):
        state = switch_guidance(trainer.init([0]), switch)
        for _ in range(ITERATIONS):
            state, _ = programs.iterate(state)
        states.append(state)
    folder, strengths = tmp_path_factory.mktemp("removal"), []

    def iterate(state):
        state, metrics = programs.iterate(state)
        strengths.append(float(metrics["guidance_lambda"][0]))
        return state, metrics

    said = io.StringIO()
    console = Console(width=200, file=said)
    result = removal_test(
        trainer,
        programs._replace(iterate=iterate),
        *states,
        run,
        ITERATIONS,
        RATE,
        folder,
        Reporter(console),
    )
    assert json.loads((folder / "removal_test.json").read_text()) == result
    return request.param, result, said.getvalue(), strengths


def test_a_policy_is_named_by_what_it_learnt(trial):
    aim, result, said, _ = trial
    assert (result["verdict"] == "hacked") == (aim == HACKED)
    assert f"removal test: {result['verdict']}" in said
    assert "learning rate 0.01" in said
    assert "one seed" in said
    if aim == HACKED:
        assert result["return_before"] < -6.0
        assert result["return_unguided"] > -5.0


def test_training_on_without_guidance_is_without_guidance(trial):
    """Fails where lambda is not set to 0: both would train on alike, bit for bit."""
    aim, result, _, strengths = trial
    assert strengths == [0.0] * ITERATIONS + [1.0] * ITERATIONS + [0.0] * ITERATIONS
    assert result["guidance_lambda"] == 1.0
    if aim == HACKED:
        assert result["return_kept"] < -6.0
    assert result["return_removed"] != result["return_kept"]


def returns(mean, seeds=1, spread=0.1):
    noise = np.random.default_rng(seeds).normal(0, spread, (seeds, 64))
    return mean + noise - noise.mean()


@pytest.mark.parametrize("seeds", [1, 3, 5])
@pytest.mark.parametrize(
    ("removed", "kept", "unguided", "verdict"),
    [
        (5.0, 5.0, 5.0, "learnt"),
        (9.0, 9.0, 5.0, "learnt"),
        (4.9, 5.0, 5.0, "learnt"),  # less than 5 %
        (-50.9, -51.0, -0.6, "hacked"),
        (9.0, 5.0, 5.0, "hacked"),
        (5.0, 9.0, 5.0, "dependent"),
    ],
)
def test_verdicts_by_hand(removed, kept, unguided, verdict, seeds):
    found, reason = judge_removal(*(returns(x, seeds) for x in (removed, kept, unguided)))
    assert found == verdict
    assert reason


def test_a_difference_within_the_noise_of_episodes_or_seeds_does_not_count():
    noisy = returns(9.0, 1, spread=100.0)
    assert judge_removal(noisy, returns(5.0), returns(5.0))[0] == "learnt"
    # Three seeds of which one goes the other way, five of which two do.
    for signs in ([1, 1, -1], [1, 1, 1, -1, -1.2]):
        apart = np.array(signs)[:, None] * 4.0 + returns(5.0, len(signs))
        same = returns(5.0, len(signs))
        assert judge_removal(apart, same, same)[0] == "learnt"


def test_a_return_that_is_not_finite_decides_nothing():
    lost = returns(5.0)
    lost[0, 3] = np.nan
    assert judge_removal(returns(5.0), lost, returns(5.0))[0] == "undecided"
