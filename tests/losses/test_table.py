"""What holds for every loss: oracle, transformations, precision, masks, gradients."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from jaxagent import losses
from tests.losses.table import CASES


def over_cases(keep=lambda case: True):
    return pytest.mark.parametrize("name", [name for name, case in CASES.items() if keep(case)])


def mask_position(case):
    names = list(inspect.signature(case.function).parameters)
    return names.index("mask") if "mask" in names else None


each = over_cases()
STATEFUL_OR_RANDOM = {
    "adapt_lambda",
    "adaptive_lambda",
    "categorical_sample",
    "choose_goal_steps",
    "history_keys",
    "relabel",
    "tanh_normal_entropy",
    "tanh_normal_sample",
}


def to_jax(arrays, dtype=jnp.float32):
    return [jnp.asarray(a, dtype if a.dtype.kind == "f" else None) for a in arrays]


def is_float(x):
    return jnp.issubdtype(x.dtype, jnp.floating)


def finite(tree):
    return all(bool(jnp.isfinite(x).all()) for x in jax.tree.leaves(tree) if is_float(x))


def assert_close(found, expected, **tolerance):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        assert a.shape == np.shape(b)
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, float), **tolerance)


@functools.cache
def compiled(name):
    """The results of a case, and the gradient of their sum by every floating-point argument."""

    def split(arrays):
        floats = [a if is_float(a) else None for a in arrays]
        return floats, [None if is_float(a) else a for a in arrays]

    def total(floats, others):
        arrays = [a if b is None else b for a, b in zip(floats, others)]
        results = [x for x in jax.tree.leaves(CASES[name].call(*arrays)) if is_float(x)]
        return sum((jnp.sum(x) for x in results), jnp.zeros(())), results

    differentiated = jax.jit(jax.grad(total, has_aux=True))
    return lambda arrays: differentiated(*split(arrays))


@functools.cache
def jitted(name):
    return jax.jit(CASES[name].call)


def test_every_function_has_a_case():
    covered = {case.function.__name__ for case in CASES.values()}
    functions = {n for n in losses.__all__ if inspect.isfunction(getattr(losses, n))}
    assert functions - covered == STATEFUL_OR_RANDOM


@each
def test_oracle(name, transform):
    case = CASES[name]
    arrays = case.arrays((5, 3))
    # The jitted function is shared, so that each case compiles once for many tests.
    function = jitted(name) if transform is jax.jit else transform(case.call)
    if transform.__name__ == "vmapped":
        function = jax.jit(function)
    assert_close(function(*to_jax(arrays)), case.expect(*arrays), rtol=2e-5, atol=2e-5)


@each
def test_numpy_arrays_are_taken_like_those_of_jax(name):
    """float64 of NumPy is what JAX makes of it: float32; eager, and as constants under jit."""
    case = CASES[name]
    arrays = case.arrays((5, 3))
    expected = jitted(name)(*to_jax(arrays))
    eager = case.call(*arrays)
    assert_close(eager, expected, rtol=1e-5, atol=1e-6)
    position = next((i for i, a in enumerate(arrays) if a.dtype.kind == "f"), 0)

    def closed_over(traced):
        return case.call(*(traced if i == position else a for i, a in enumerate(arrays)))

    assert_close(jax.jit(closed_over)(arrays[position]), expected, rtol=1e-6, atol=1e-6)
    for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(expected)):
        assert isinstance(a, jax.Array)
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)


@each
def test_oracle_without_a_batch_axis(name):
    case = CASES[name]
    arrays = case.arrays((5,))
    assert_close(jitted(name)(*to_jax(arrays)), case.expect(*arrays), rtol=2e-5, atol=2e-5)


@each
def test_oracle_in_double_precision(name):
    case = CASES[name]
    arrays = case.arrays((5, 3), seed=1)
    with jax.enable_x64(True):
        result = jitted(name)(*to_jax(arrays, jnp.float64))
        assert all(x.dtype == jnp.float64 for x in jax.tree.leaves(result) if is_float(x))
        assert_close(result, case.expect(*arrays), rtol=1e-9, atol=1e-9)


@each
def test_bfloat16_is_accumulated_in_float32(name):
    narrow = to_jax(CASES[name].arrays((5, 3)), jnp.bfloat16)
    wide = [x.astype(jnp.float32) if is_float(x) else x for x in narrow]
    result = jitted(name)(*narrow)
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(result) if is_float(x))
    assert_close(result, jitted(name)(*wide), rtol=1e-6, atol=1e-6)


@each
def test_no_weak_types_that_would_retrace(name):
    case = CASES[name]
    result = jax.eval_shape(case.call, *to_jax(case.arrays((5, 3))))
    assert not any(x.weak_type for x in jax.tree.leaves(result))


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@over_cases(lambda case: not case.hides_nan)
def test_non_finite_input_comes_out(name, poison):
    case = CASES[name]
    arrays = case.arrays((5, 3))
    mask = mask_position(case)
    for i, array in enumerate(arrays):
        if array.dtype.kind == "f" and i not in case.ignores:
            poisoned = [a.copy() for a in arrays]
            poisoned[i][...] = poison
            if mask is not None:
                poisoned[mask][...] = True
            assert not finite(jitted(name)(*to_jax(poisoned))), f"argument {i}"


def spoil_dead_entries(array, mask):
    """NaN wherever the mask, aligned with the axes of this size, is False."""
    if array.dtype.kind != "f" or (5, 3) not in (array.shape[:2], array.shape[-2:]):
        return array
    mask = mask.reshape(*mask.shape, *[1] * (array.ndim - 2)) if array.shape[:2] == (5, 3) else mask
    return np.where(mask, array, np.nan)


@over_cases(lambda case: mask_position(case) is not None)
def test_dead_entries_are_never_looked_at(name):
    case = CASES[name]
    mask = mask_position(case)
    arrays = case.arrays((5, 3))
    dead = [spoil_dead_entries(a, arrays[mask]) for a in arrays]
    assert_close(jitted(name)(*to_jax(dead)), jitted(name)(*to_jax(arrays)), rtol=0, atol=0)
    assert finite(compiled(name)(to_jax(dead)))


DEGENERATE = {
    "regular": lambda case: case.arrays((5, 3)),
    "all masked": lambda case: with_mask(case, np.zeros((5, 3), bool)),
    "one live": lambda case: with_mask(case, np.arange(15).reshape(5, 3) == 7),
    "one step": lambda case: case.arrays((1, 3)),
    "all equal": lambda case: [
        np.full_like(a, 0.5) if a.dtype.kind == "f" else a for a in case.arrays((5, 3))
    ],
    "all zero": lambda case: [
        a * 0 if recipe.__name__ != "positive" and a.dtype.kind == "f" and a.min() < 0 else a
        for recipe, a in zip(case.recipes, case.arrays((5, 3)))
    ],
    "saturated": lambda case: [
        1e4 * a if a.dtype.kind == "f" and a.min() < 0 else a for a in case.arrays((5, 3))
    ],
}


def with_mask(case, mask):
    arrays = case.arrays((5, 3))
    if mask_position(case) is not None:
        arrays[mask_position(case)] = mask
    return arrays


@each
def test_value_and_gradient_are_finite(name):
    case = CASES[name]
    for label, make in DEGENERATE.items():
        if "mask" in label and mask_position(case) is None:
            continue
        arrays = to_jax(make(case))
        assert finite(compiled(name)(arrays)), label


@each
def test_permuting_the_batch_permutes_the_result(name):
    case = CASES[name]
    arrays = case.arrays((5, 3))
    order = np.array([2, 0, 1])
    permuted = [np.take(a, order, a.shape.index(3)) if 3 in a.shape else a for a in arrays]
    straight = jax.tree.leaves(jitted(name)(*to_jax(arrays)))
    for a, b in zip(jax.tree.leaves(jitted(name)(*to_jax(permuted))), straight):
        axis = a.shape.index(3) if 3 in a.shape else None
        expected = b if axis is None else jnp.take(b, order, axis)
        np.testing.assert_allclose(a, expected, rtol=1e-5, atol=1e-6)


@over_cases(lambda case: case.smooth)
def test_gradient_against_differences(name):
    case = CASES[name]
    with jax.enable_x64(True):
        arrays = to_jax(case.arrays((3, 2), seed=3), jnp.float64)
        where = [i for i, a in enumerate(arrays) if is_float(a)]

        def of_floats(*chosen):
            filled = list(arrays)
            for i, a in zip(where, chosen):
                filled[i] = jnp.asarray(a)
            return jax.tree.leaves(case.call(*filled))

        check_grads(jax.jit(of_floats), [arrays[i] for i in where], order=1, modes=["rev"])
