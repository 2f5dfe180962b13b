import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from jaxagent.losses import critic_error, soft_actor_loss, soft_target, temperature_loss
from tests.losses.strategies import SHAPE, booleans, few, numbers

twin = numbers(shape=(2, *SHAPE))
LIVE = jnp.ones(2, bool)


def test_soft_target_worked_by_hand():
    # γ = 0.9. Truncated: 1 + 0.9·(min(5, 3) − 0.5·(−2)) = 1 + 0.9·4 = 4.6. Terminated: 1.
    found = soft_target(
        jnp.ones(2),
        jnp.array([0.9, 0.0]),
        jnp.array([[5.0, 5.0], [3.0, 3.0]]),
        jnp.array([-2.0, -2.0]),
        temperature=0.5,
    )
    np.testing.assert_allclose(found, [4.6, 1.0], rtol=1e-6)


def test_critic_error_worked_by_hand():
    # ½(1² + 3²) = 5 and ½(0² + 2²) = 2, mean 3.5; gradient ½(Q − y) per sample of two
    q, y = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array([0.0, 2.0])
    assert critic_error(q, y, LIVE).item() == 3.5
    np.testing.assert_allclose(jax.grad(critic_error)(q, y, LIVE), [[0.5, 0], [1.5, 1]])


def test_target_of_the_critics_carries_no_gradient():
    q, y = jnp.array([[1.0, 2.0]]), jnp.array([0.0, 2.0])
    assert not jax.grad(critic_error, argnums=1)(q, y, LIVE).any()


def test_actor_loss_worked_by_hand():
    # 0.5·(−1) − min(4, 2) = −2.5 and 0.5·3 − min(1, 6) = 0.5, mean −1
    q, log_prob = jnp.array([[4.0, 1.0], [2.0, 6.0]]), jnp.array([-1.0, 3.0])
    assert soft_actor_loss(log_prob, q, LIVE, temperature=0.5).item() == -1.0
    by_temperature = jax.grad(lambda a: soft_actor_loss(log_prob, q, LIVE, temperature=a))(0.5)
    assert by_temperature == 0.0


def test_temperature_loss_worked_by_hand():
    # α = 2, mean log π = −3, H̄ = 1: −2·(−3 + 1) = 4
    log_temperature, log_prob = jnp.log(2.0), jnp.array([-2.0, -4.0])
    found = temperature_loss(log_temperature, log_prob, LIVE, target_entropy=1.0)
    np.testing.assert_allclose(found, 4.0, rtol=1e-6)
    by_policy = jax.grad(temperature_loss, argnums=1)(
        log_temperature, log_prob, LIVE, target_entropy=1.0
    )
    assert not by_policy.any()


@few
@given(numbers(-4, 4), booleans())
def test_temperature_rises_exactly_while_entropy_is_too_low(log_prob, mask):
    slope = jax.grad(temperature_loss)(jnp.zeros(()), log_prob, mask, target_entropy=1.0)
    entropy = -jnp.sum(jnp.where(mask, log_prob, 0)) / max(int(mask.sum()), 1)
    if mask.any() and abs(entropy - 1.0) > 1e-3:
        assert (slope < 0) == (entropy < 1.0)


@few
@given(numbers(), numbers(0, 1), twin, numbers())
def test_order_of_the_critics_does_not_matter(reward, discount, q, log_prob):
    forward = soft_target(reward, discount, q, log_prob, temperature=0.2)
    backward = soft_target(reward, discount, q[::-1], log_prob, temperature=0.2)
    np.testing.assert_array_equal(forward, backward)
    assert (forward <= reward + discount * (q[0] - 0.2 * log_prob) + 1e-5).all()


def test_more_critics_than_two():
    q = jnp.array([[4.0], [3.0], [9.0]])
    one = jnp.ones(1)
    assert soft_target(one, one, q, 0 * one, temperature=0.0).item() == 4.0


def test_an_infinite_critic_is_not_hidden_behind_the_other():
    one, value = jnp.ones(1), jnp.array([[np.inf], [2.0]])
    assert not jnp.isfinite(soft_target(one, one, value, -one, temperature=1.0)[0])
    assert not jnp.isfinite(soft_actor_loss(one, value, one > 0, temperature=1.0))
    assert jnp.isfinite(soft_actor_loss(one, value, one < 0, temperature=1.0))
