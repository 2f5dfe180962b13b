import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given

from jaxagent.losses import clipped_surrogate, clipped_value_error, masked_mean, ppo_loss
from tests.losses.strategies import booleans, few, numbers

COSTS = {"value_clip_epsilon": 0.2, "value_cost": 0.5, "entropy_cost": 0.01}


def test_ppo_loss_worked_by_hand():
    # Three live samples and a dead one, ε = 0.2, c_v = 0.5, c_e = 0.1.
    # ρ     2     0.5    1          Â     1    −1     3
    # min(ρÂ, clip Â):  1.2   max(0.5, 0.8)·(−1) = −0.8   3         mean 3.4/3
    # ½(V − G)²:  ½·4 = 2   0   ½·1 = 0.5                           mean 2.5/3
    # entropy 1, 2, 3: mean 2         clipped: 2 of 3
    # k3 = ρ − 1 − log ρ:  1 − log 2   −0.5 + log 2   0             mean 0.5/3
    # total = −3.4/3 + 0.5·2.5/3 − 0.1·2
    log_prob = jnp.log(jnp.array([2.0, 0.5, 1.0, 7.0]))
    found = ppo_loss(
        log_prob,
        jnp.zeros(4),
        jnp.array([1.0, -1.0, 3.0, 100.0]),
        jnp.array([2.0, 1.0, 0.0, 9.0]),
        jnp.zeros(4),
        jnp.array([0.0, 1.0, 1.0, 0.0]),
        jnp.array([1.0, 2.0, 3.0, 50.0]),
        jnp.array([True, True, True, False]),
        clip_epsilon=0.2,
        value_clip_epsilon=None,
        value_cost=0.5,
        entropy_cost=0.1,
    )
    expected = [-3.4 / 3 + 1.25 / 3 - 0.2, -3.4 / 3, 2.5 / 3, 2.0, 2 / 3, 0.5 / 3]
    np.testing.assert_allclose(jnp.stack(found), expected, rtol=1e-5)


def test_a_ratio_on_the_edge_of_the_clip_is_not_clipped():
    zero = jnp.zeros(3)
    found = ppo_loss(*[zero] * 7, zero == 0, clip_epsilon=0.0, **COSTS)
    assert found.clip_fraction == 0.0


def test_value_clip_worked_by_hand():
    # V_old = 0, ε = 0.5, G = 2. V = 3: (3−2)² = 1 against (0.5−2)² = 2.25, half of it 1.125.
    # V = −3: 25 against (−0.5−2)² = 6.25, half of 25.
    found = clipped_value_error(
        jnp.array([3.0, -3.0]), jnp.zeros(2), jnp.full(2, 2.0), value_clip_epsilon=0.5
    )
    np.testing.assert_allclose(found, [1.125, 12.5])


@few
@given(numbers(-3, 0), numbers(), booleans())
def test_at_ratio_one_the_gradient_is_the_policy_gradient(log_prob, advantage, mask):
    zero = jnp.zeros_like(log_prob)

    def surrogate(x):
        arrays = (x, log_prob, advantage, zero, zero, zero, zero, mask)
        return ppo_loss(*arrays, clip_epsilon=0.2, **COSTS).policy

    def policy_gradient(x):
        return -masked_mean(x * advantage, mask)

    np.testing.assert_allclose(
        jax.grad(surrogate)(log_prob), jax.grad(policy_gradient)(log_prob), atol=1e-6
    )


@few
@given(numbers(-3, 3), numbers(-3, 3), numbers())
def test_surrogate_is_a_lower_bound_of_the_unclipped_one(log_prob, behaviour, advantage):
    found = clipped_surrogate(log_prob, behaviour, advantage, clip_epsilon=0.2)
    unclipped = jnp.exp(log_prob - behaviour) * advantage
    assert (found <= unclipped + 1e-3 * jnp.abs(unclipped) + 1e-5).all()


@few
@given(numbers(), numbers(), numbers())
def test_clipping_the_value_never_lowers_the_error(value, behaviour, target):
    clipped = clipped_value_error(value, behaviour, target, value_clip_epsilon=0.2)
    plain = clipped_value_error(value, behaviour, target, value_clip_epsilon=None)
    assert (clipped >= plain).all()


def test_on_the_edge_of_the_clip_the_gradient_flows():
    def surrogate(x):
        return clipped_surrogate(x, jnp.zeros(2), jnp.array([3.0, -3.0]), clip_epsilon=0.0).sum()

    np.testing.assert_allclose(jax.grad(surrogate)(jnp.zeros(2)), [3.0, -3.0])


def test_the_gradient_vanishes_only_where_the_clip_binds():
    log_prob = jnp.log(jnp.array([1.5, 1.5, 0.5, 0.5]))
    advantage = jnp.array([1.0, -1.0, 1.0, -1.0])
    slope = jax.grad(
        lambda x: clipped_surrogate(x, jnp.zeros(4), advantage, clip_epsilon=0.2).sum()
    )(log_prob)
    np.testing.assert_allclose(slope, [0.0, -1.5, 0.5, 0.0], rtol=1e-6)


@pytest.mark.parametrize("log_ratio", [1e4, -1e4, 30.0])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_saturated_ratio(log_ratio, advantage):
    def loss(x):
        one, zero = jnp.ones(1), jnp.zeros(1)
        arrays = (x, zero, advantage * one, zero, zero, zero, zero, jnp.ones(1, bool))
        return ppo_loss(*arrays, clip_epsilon=0.2, **COSTS)

    x = jnp.full(1, log_ratio)
    assert all(jnp.isfinite(part) for part in loss(x))
    slope = jax.grad(lambda x: loss(x).total)(x)
    assert jnp.isfinite(slope).all()
    if log_ratio > 0 and advantage < 0:
        assert slope > 0, "a bad action that became far likelier must still be pushed down"


def test_the_bound_of_the_surrogate_is_the_clipped_ratio_times_the_advantage():
    # ε |Â| instead of a clip: both clips, both signs, no advantage, a clip wider than 1.
    axes = [0.01, 0.7, 1.0, 1.3, 4.0], [-3.0, -0.5, 0.0, 0.5, 3.0], [0.1, 0.5, 1.5]
    ratio, advantage, epsilon = (a.reshape(-1) for a in np.meshgrid(*axes))
    found = jax.vmap(lambda x, a, e: clipped_surrogate(x, jnp.zeros(()), a, clip_epsilon=e))(
        *(jnp.asarray(a, jnp.float32) for a in (np.log(ratio), advantage, epsilon))
    )
    clipped = np.clip(ratio, 1 - epsilon, 1 + epsilon)
    wanted = np.minimum(ratio * advantage, clipped * advantage)
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_scheduled_hyper_parameters_do_not_recompile():
    traces = []

    @jax.jit
    def loss(clip_epsilon, entropy_cost):
        traces.append(1)
        x = jnp.ones((3, 2))
        arrays = (x, 0.9 * x, x, x, x, x, x, x > 0)
        return ppo_loss(
            *arrays,
            clip_epsilon=clip_epsilon,
            value_clip_epsilon=None,
            value_cost=0.5,
            entropy_cost=entropy_cost,
        ).total

    first, second = loss(0.2, 0.0), loss(0.05, 0.1)
    # surrogate 1.05 instead of exp 0.1, entropy bonus 0.1
    np.testing.assert_allclose(second - first, -1.05 + np.exp(0.1) - 0.1, rtol=1e-5)
    assert len(traces) == 1


@pytest.mark.parametrize("log_ratio", [np.inf, -np.inf])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_an_infinite_ratio_is_not_clipped_away(log_ratio, advantage):
    # A token that decoding forbade has a behaviour log-probability of -inf.
    arrays = (jnp.zeros(2), jnp.array([0.0, -log_ratio]), jnp.full(2, advantage))
    found = clipped_surrogate(*arrays, clip_epsilon=0.2)
    np.testing.assert_array_equal(jnp.isfinite(found), [True, False])
