"""What a user sees who passes the wrong thing, and what importing the losses brings along."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.losses import (
    categorical_log_prob,
    gae,
    lambda_returns,
    masked_mean,
    ppo_loss,
    staged_lambda,
    tanh_normal_sample,
)
from jaxagent.losses.contract import not_hidden, require_array

X = jnp.zeros((4, 2))
END = jnp.zeros((4, 2), bool)


def message(function, *args, error=TypeError, **kwargs):
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_mismatched_time_axis_names_argument_axes_and_both_shapes():
    assert message(gae, X, X, X[:3], X, END, gae_lambda=0.9) == (
        "gae: argument 'value' must be Float[T *B], found float32[3, 2] "
        "beside reward float32[4, 2], discount float32[4, 2]"
    )


@pytest.mark.parametrize(
    ("position", "wrong", "found"),
    [
        (0, X.astype(int), "'reward' must be Float[T *B], found int32[4, 2]"),
        (0, jnp.zeros(()), "'reward' must be Float[T *B], found float32[]"),
        (1, X[:, 0], "'discount' must be Float[T *B], found float32[4]"),
        (3, X[..., None], "'next_value' must be Float[T *B], found float32[4, 2, 1]"),
        (4, X, "'episode_end' must be Bool[T *B], found float32[4, 2]"),
        (2, [[0.0]], "'value' must be Float[T *B], found list"),
        (0, np.zeros((4, 2)), "found numpy.ndarray float64[4, 2] (convert it with jax.numpy"),
    ],
)
def test_wrong_kind_is_one_line(position, wrong, found):
    arguments = [X, X, X, X, END]
    arguments[position] = wrong
    assert found in message(gae, *arguments, gae_lambda=0.9)


def test_same_error_while_tracing():
    with pytest.raises(TypeError, match=r"argument 'value' must be Float\[T \*B\]"):
        jax.jit(lambda v: gae(X, X, v, X, END, gae_lambda=0.9))(X[:3])


def test_alternatives_of_a_hyper_parameter_are_named():
    found = message(gae, X, X, X, X, END, gae_lambda="0.9")
    assert "'gae_lambda' must be float | int | Float[], found str '0.9'" in found


def test_ppo_mask_of_floats():
    costs = {
        "clip_epsilon": 0.2,
        "value_clip_epsilon": None,
        "value_cost": 0.5,
        "entropy_cost": 0.0,
    }
    assert "'mask' must be Bool[*S]" in message(ppo_loss, *[X] * 8, **costs)
    costs["value_clip_epsilon"] = "off"
    found = message(ppo_loss, *[X] * 7, END, **costs)
    assert "'value_clip_epsilon' must be float | int | Float[] | None" in found


def test_key_and_index_kinds():
    assert "'key' must be Key[] | UInt32[2]" in message(tanh_normal_sample, 0, X, X)
    assert "'action' must be Int[*B]" in message(categorical_log_prob, X, jnp.zeros(4))


def test_missing_argument_is_pythons_own_error():
    assert "gae_lambda" in message(gae, X, X, X, X, END)


@pytest.mark.parametrize("value", [-0.01, 1.01, 2, float("nan")])
@pytest.mark.parametrize("function", [gae, lambda_returns])
def test_static_lambda_outside_the_unit_interval(function, value):
    arrays = (X, X, X, X, END) if function is gae else (X, X, X, END)
    found = message(function, *arrays, gae_lambda=value, error=ValueError)
    assert found == f"{function.__name__}: gae_lambda must lie in [0, 1], found {value}"


@pytest.mark.parametrize("value", [0, 1, 0.0, 1.0])
def test_ends_of_the_unit_interval_are_inside(value):
    assert gae(X, X, X, X, END, gae_lambda=value).shape == (4, 2)


def test_traced_lambda_is_data():
    result = jax.jit(lambda lam: gae(X + 1, X + 1, X, X, END, gae_lambda=lam))(0.5)
    np.testing.assert_allclose(result, gae(X + 1, X + 1, X, X, END, gae_lambda=0.5), rtol=1e-6)


def test_stages_out_of_order():
    stages = {"explore_lambda": 1.0, "refine_lambda": 0.3, "refine_from": 0.9, "zero_from": 0.5}
    found = message(staged_lambda, 0.5, error=ValueError, **stages)
    assert found == "staged_lambda: refine_from (0.9) must not exceed zero_from (0.5)"


def test_an_error_inside_the_result_is_not_blamed_on_an_argument():
    from jaxtyping import Array, Float, TypeCheckError

    from jaxagent.losses.contract import checked

    @checked
    def halves(x: Float[Array, "T"]) -> Float[Array, "T"]:
        return x[::2]

    with pytest.raises(TypeCheckError, match="return"):
        halves(jnp.zeros(4))


def test_masked_mean_mask_of_other_shape():
    assert "'mask' must be Bool[*S], found bool[4]" in message(masked_mean, X, END[:, 0])


BLOCKED = ("flax", "optax", "brax", "transformers", "orbax", "chex", "scipy.io", "pandas", "rlax")


def test_losses_import_nothing_but_jax():
    code = f"""
        import sys
        class Block:
            def find_spec(self, name, path=None, target=None):
                if any(name == b or name.startswith(b + ".") for b in {BLOCKED!r}):
                    raise ImportError(name)
        sys.meta_path.insert(0, Block())
        import jax, jaxtyping, beartype, beartype.door
        before = set(sys.modules)
        from jaxagent.losses import gae
        new = {{m.split(".")[0] for m in set(sys.modules) - before}}
        print(sorted(new - set(sys.stdlib_module_names)))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    # jax.experimental and the like may load lazily, but no package of its own appears.
    assert set(eval(done.stdout)) <= {"jaxagent", "jax", "jaxlib", "jaxtyping", "beartype"}


@pytest.mark.parametrize(
    ("array", "kind", "fault"),
    [
        (jnp.zeros(3), jnp.floating, None),
        (jnp.zeros(3, int), jnp.integer, None),
        (jnp.zeros(3), jnp.integer, r"step must be Int\[3\], found float32\[3\]"),
        (jnp.zeros((3, 1)), jnp.floating, r"step must be Float\[3\], found float32\[3, 1\]"),
        ([0.0] * 3, jnp.floating, r"step must be Float\[3\], found list"),
    ],
)
def test_arrays_that_no_annotation_is_for(array, kind, fault):
    if fault is None:
        require_array("f", "step", array, kind, (3,))
    else:
        with pytest.raises(TypeError, match=f"^f: {fault}"):
            require_array("f", "step", array, kind, (3,))


def test_what_is_not_finite_is_shown_and_all_else_is_left():
    x = jnp.array([0.0, -2.0, jnp.inf, -jnp.inf, jnp.nan])
    shown = not_hidden(jnp.ones(5), x, jnp.zeros(5))
    assert jnp.isnan(shown).tolist() == [False, False, True, True, True]
    assert shown[:2].tolist() == [1.0, 1.0]
