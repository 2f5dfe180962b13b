import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxagent.losses import (
    adapt_lambda,
    adaptive_lambda,
    constant_lambda,
    cosine_lambda,
    linear_lambda,
    scale_matched_lambda,
    staged_lambda,
)
from tests.losses.strategies import few, numbers
from tests.reference import guidance as reference

STAGES = {"explore_lambda": 1.0, "refine_lambda": 0.3, "refine_from": 0.4, "zero_from": 0.7}


@pytest.mark.parametrize(
    ("at", "linear", "cosine", "staged"),
    [
        (-1.0, 1.2, 1.2, 1.0),
        (0, 1.2, 1.2, 1.0),
        (0.25, 0.95, 0.2 + 0.5 * (1 + 2**-0.5), 1.0),
        (0.4, 0.8, 0.2 + 0.5 * (1 + 0.30901699), 0.3),
        (0.5, 0.7, 0.7, 0.3),
        (0.7, 0.5, 0.2 + 0.5 * (1 - 0.58778525), 0.0),
        (1, 0.2, 0.2, 0.0),
        (9.0, 0.2, 0.2, 0.0),
    ],
)
def test_schedules_worked_by_hand(at, linear, cosine, staged):
    ends = {"start": 1.2, "end": 0.2}
    np.testing.assert_allclose(constant_lambda(at, guidance_lambda=0.6), 0.6, rtol=1e-6)
    np.testing.assert_allclose(linear_lambda(at, **ends), linear, rtol=1e-6)
    np.testing.assert_allclose(cosine_lambda(at, **ends), cosine, rtol=1e-6)
    np.testing.assert_allclose(staged_lambda(at, **STAGES), staged, rtol=1e-6)


def test_the_refining_stage_may_be_empty():
    stages = STAGES | {"refine_from": 0.7}
    np.testing.assert_allclose([staged_lambda(x, **stages) for x in (0.6, 0.7)], [1.0, 0.0])


def test_traced_stage_boundaries():
    def at(refine_from):
        return staged_lambda(
            0.5, explore_lambda=1.0, refine_lambda=0.3, refine_from=refine_from, zero_from=0.7
        )

    np.testing.assert_allclose(jax.jit(at)(0.6), 1.0)
    np.testing.assert_allclose(jax.jit(at)(0.2), 0.3, rtol=1e-6)


@few
@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_schedules_stay_between_their_ends_and_fall(first, second, end):
    early, late = sorted((first, second))
    for schedule in (linear_lambda, cosine_lambda):
        before, after = (schedule(x, start=1.0, end=end).item() for x in (early, late))
        assert end - 1e-6 <= after <= before + 1e-6 <= 1.0 + 2e-6


def run(returns, first=0.5, window_size=2, **options):
    state, out = adaptive_lambda(first, window_size=window_size), []
    step = jax.jit(lambda s, r: adapt_lambda(s, r, **options))
    for value in returns:
        state = step(state, jnp.asarray(value, jnp.float32))
        out.append(state.guidance_lambda.item())
    return out


def test_adaptive_schedule_worked_by_hand():
    # K = 2. Means 1.5 after two, then 2.5 (rises), 2.5 (stalls), 2 (falls), 3.5 (rises).
    # λ: 1, 1, 0.99, min(1.05, 1.1·0.99) = 1.05, 1.05, 0.99·1.05
    found = run([1, 2, 3, 2, 2, 5], first=1.0, growth=1.1, cap=1.05)
    np.testing.assert_allclose(found, [1, 1, 0.99, 1.05, 1.05, 1.0395], rtol=1e-6)


def test_without_growth_it_holds_even_above_the_cap():
    np.testing.assert_allclose(run([3, 2, 1, 0, -1], first=2.0, cap=1.0), [2.0] * 5)


def test_a_non_finite_return_is_a_stall_and_leaves_the_window():
    found = run([1, 2, np.nan, 3, 4, 5], first=1.0, cap=9.0, growth=2.0)
    np.testing.assert_allclose(found, [1, 1, 2, 4, 8, 7.92], rtol=1e-6)


@few
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=9),
    st.integers(1, 3),
    st.floats(0.5, 1),
    st.floats(1, 2),
)
def test_adaptive_schedule_against_the_whole_history(returns, window_size, decay, growth):
    state = adaptive_lambda(0.5, window_size=window_size)
    out = []
    for value in returns:
        state = adapt_lambda(state, jnp.float32(value), decay=decay, growth=growth, cap=0.9)
        out.append(state.guidance_lambda.item())
    expected = reference.adaptive_lambda(0.5, returns, window_size, decay, growth, 0.9)
    np.testing.assert_allclose(out, expected, rtol=1e-5)


def test_adaptive_state_keeps_its_types_so_that_nothing_recompiles():
    state = adaptive_lambda(0.5, window_size=3)
    after = adapt_lambda(state, jnp.ones(()), cap=1.0)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), after
    )


def test_a_state_of_another_kind_is_named():
    state = adaptive_lambda(1.0, window_size=3)
    wrong = state._replace(window=jnp.ones((2, 2)))
    with pytest.raises(TypeError, match=r"state.window must be Float\[2\], found float32\[2, 2\]"):
        adapt_lambda(wrong, jnp.array(1.0), cap=1.0)
    with pytest.raises(TypeError, match=r"state.count must be Int\[\], found float32"):
        adapt_lambda(state._replace(count=jnp.zeros(())), jnp.array(1.0), cap=1.0)


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="window_size must be at least 1, found 0"):
        adaptive_lambda(0.5, window_size=0)


def test_scale_matching_worked_by_hand():
    # min(1, 0.5·2/4 = 0.25) and min(0.1, 0.25); silent guidance leaves λ; a task without
    # variation leaves no room for guidance.
    env, guidance = jnp.array([2.0, 2.0, 2.0, 0.0, 0.0]), jnp.array([4.0, 4.0, 0.0, 4.0, 0.0])
    first = jnp.array([1.0, 0.1, 1.0, 1.0, 1.0])
    found = scale_matched_lambda(first, env, guidance, ratio=0.5)
    np.testing.assert_allclose(found, [0.25, 0.1, 1.0, 0.0, 1.0], rtol=1e-6)
    slope = jax.grad(lambda e, g: scale_matched_lambda(first, e, g, ratio=0.5).sum(), (0, 1))
    assert all(jnp.isfinite(s).all() for s in slope(env, guidance))


def test_a_scalar_lambda_goes_with_any_shape():
    env, guidance = jnp.full((2, 3), 0.5), jnp.ones((2, 3))
    found = jax.jit(lambda lam: scale_matched_lambda(lam, env, guidance, ratio=0.5))(1.0)
    np.testing.assert_allclose(found, jnp.full((2, 3), 0.25))


@few
@given(numbers(0, 2), numbers(0, 5), numbers(0.0078125, 5))
def test_scaled_guidance_never_exceeds_its_share(first, env, guidance):
    found = scale_matched_lambda(first, env, guidance, ratio=0.5)
    assert (found <= first).all()
    assert (found * guidance <= 0.5 * env * (1 + 1e-5) + 1e-6).all()
