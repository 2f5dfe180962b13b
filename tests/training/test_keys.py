"""No random key is used twice: what looks independent is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.probe import truncation_bootstrap
from jaxagent.agents.behaviour_cloning import CloningConfig
from jaxagent.training.recording import Recording, warm_start
from jaxagent.training.trainer import seed_keys
from tests.envs.test_goals import line
from tests.keys import watched_keys
from tests.training import probe_run, skill_run


def recording(observation_size):
    rows = (4, 2)
    arrays = {"observation": observation_size, "action": 1, "pre_tanh": 1}
    zeros = {name: np.zeros((*rows, size), np.float32) for name, size in arrays.items()}
    flags = {name: np.zeros(rows, bool) for name in ("terminated", "truncated", "success")}
    return Recording(**zeros, **flags, reward=np.zeros(rows, np.float32), task="probe")


def rewriting(key, kept, written):
    """Draws for every step from the keys that a rewriting is given."""
    noise = jax.random.normal(key, kept.action.shape)
    return kept._replace(action=kept.action + 0 * noise), {"kept": jnp.ones(())}


def ppo():
    """Its time limit is longer than the unroll: padding of resets draws the same start twice."""
    return probe_run.make_trainer(probe_run.run_config(), truncation_bootstrap(), num_devices=1)


def sac():
    trainer = skill_run.make_trainer(
        skill_run.run_config(2), num_devices=1, simulator=line(on_success="hold", reach=(9.0, 9.5))
    )
    return dataclasses.replace(trainer, warmup_iterations=0)


@pytest.mark.parametrize("make", [ppo, sac])
def test_no_key_of_a_run_is_used_in_two_ways_or_twice(make, monkeypatch):
    """Start, warm start, an iteration, rewriting of the replay, evaluation: of one seed."""
    trainer = make()
    with watched_keys(monkeypatch) as uses:
        state = trainer.init([0])
        size = trainer.env.observation_size
        config = CloningConfig(cloning_steps=3, cloning_batch_size=4)
        state, _ = warm_start(trainer, state, recording(size), config)
        iterate = trainer._lower_iterate(state).compile()
        state, _ = iterate(state)
        if make is sac:
            state, _ = trainer.rewrite_replay(state, rewriting)
        evaluate = trainer.compile_evaluation(state)
        evaluate(state.agent, trainer.replicate(np.zeros(1, np.int32)))
        jax.block_until_ready(state)
        jax.effects_barrier()
    uses.check()
    # Key 0 is where all begins, and the run's own key is folded with every number once.
    assert tuple(jax.random.key_data(jax.random.key(0)).tolist()) in uses.of("split")
    run = tuple(jax.random.key_data(seed_keys(0).run).tolist())
    assert len([use for use in uses.found if use[1] == run]) == (2 if make is ppo else 3)


def test_the_streams_of_a_seed_differ_from_each_other_and_from_those_of_its_neighbours():
    keys = np.concatenate([jax.random.key_data(jnp.stack(seed_keys(seed))) for seed in range(50)])
    assert len(np.unique(keys, axis=0)) == 200
