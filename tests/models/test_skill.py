"""Goal-conditioned networks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.models.critics import CriticEnsemble, SkillValue
from jaxagent.models.skill_policy import SkillPolicy

KEY = jax.random.key(0)
OBSERVATION = jax.random.normal(jax.random.key(1), (5, 7))
SMALL = {"goal_features": 2, "encoder_sizes": (8,), "hidden_sizes": (8,)}


def test_state_and_goal_have_an_encoder_each_of_the_sizes_of_the_article():
    params = SkillPolicy(action_size=3, goal_features=2).init(KEY, OBSERVATION)["params"]
    shapes = {
        "/".join(str(k.key) for k in path): x.shape
        for path, x in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    assert shapes["state_encoder/Dense_0/kernel"] == (5, 256)
    assert shapes["goal_encoder/Dense_0/kernel"] == (2, 256)
    assert shapes["MLP_0/Dense_0/kernel"] == (512, 512)
    assert shapes["MLP_0/Dense_1/kernel"] == (512, 512)
    assert shapes["log_scale"] == (3,)


@pytest.mark.parametrize("state_dependent", [False, True])
def test_only_a_state_dependent_scale_depends_on_the_state(state_dependent):
    policy = SkillPolicy(action_size=3, state_dependent_scale=state_dependent, **SMALL)
    loc, scale = policy.apply(policy.init(KEY, OBSERVATION), OBSERVATION)
    assert loc.shape == scale.shape == (5, 3)
    assert (np.ptp(np.asarray(scale), axis=0) > 0).all() == state_dependent
    np.testing.assert_allclose(scale, 0.52, rtol=0.1)


def test_a_wild_input_keeps_the_scale_within_bounds():
    policy = SkillPolicy(action_size=1, state_dependent_scale=True, **SMALL)
    params = policy.init(KEY, OBSERVATION)
    for size in (1e6, -1e6):
        _, scale = policy.apply(params, jnp.full((1, 7), size))
        assert 0.02 <= float(scale[0, 0]) <= 7.41


def test_the_critics_of_an_ensemble_are_independent():
    critics = CriticEnsemble(num_critics=3, **SMALL)
    action = jnp.zeros((5, 2))
    params = critics.init(KEY, OBSERVATION, action)
    value = critics.apply(params, OBSERVATION, action)
    assert value.shape == (3, 5)
    assert len(np.unique(value)) == 15
    grads = jax.grad(lambda p: critics.apply(p, OBSERVATION, action)[1].sum())(params)
    moved = {
        name: all(leaf.any() for leaf in jax.tree.leaves(part))
        for name, part in grads["params"].items()
    }
    assert moved == {"critic_0": False, "critic_1": True, "critic_2": False}
    assert not any(leaf.any() for leaf in jax.tree.leaves(grads["params"]["critic_0"]))


def test_the_value_reads_the_goal():
    critic = SkillValue(**SMALL)
    params = critic.init(KEY, OBSERVATION)
    value = critic.apply(params, OBSERVATION)
    other = critic.apply(params, OBSERVATION.at[:, -1].add(1.0))
    assert value.shape == (5,)
    assert (value != other).all()
