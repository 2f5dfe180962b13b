"""What a user sees who passes the wrong thing, and what importing the losses brings along."""

import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxagent.losses import (
    AdaptiveLambda,
    GoalSteps,
    adapt_lambda,
    categorical_log_prob,
    choose_goal_steps,
    gae,
    grpo_advantages,
    lambda_returns,
    masked_mean,
    ppo_loss,
    relabel,
    staged_lambda,
    tanh_normal_sample,
    temperature_loss,
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
        (2, np.zeros((4, 3)), "'value' must be Float[T *B], found numpy.ndarray float64[4, 3]"),
        (0, np.zeros((4, 2), int), "'reward' must be Float[T *B], found numpy.ndarray int64[4, 2]"),
        (0, np.zeros((4, 2), object), "found numpy.ndarray object[4, 2] (convert it with"),
        (0, np.ma.masked_array(np.zeros((4, 2))), "found numpy.MaskedArray float64[4, 2] (convert"),
        (0, 0.5, "'reward' must be Float[T *B], found float 0.5"),
        (4, 1, "'episode_end' must be Bool[T *B], found int 1"),
    ],
)
def test_wrong_kind_is_one_line(position, wrong, found):
    arguments = [X, X, X, X, END]
    arguments[position] = wrong
    assert found in message(gae, *arguments, gae_lambda=0.9)


def test_numpy_beside_jax_is_named_where_the_axes_differ():
    array = np.zeros((4, 2), np.float32)
    assert message(gae, array, X, X[:3], X, END, gae_lambda=0.9) == (
        "gae: argument 'value' must be Float[T *B], found float32[3, 2] "
        "beside reward numpy.ndarray float32[4, 2], discount float32[4, 2]"
    )
    with pytest.raises(
        TypeError, match=r"'value' must be Float.*found numpy.ndarray float64\[3, 2"
    ):
        jax.jit(lambda v: gae(v, v, np.zeros((3, 2)), X, END, gae_lambda=0.9))(X)


def test_integers_of_numpy_that_32_bits_do_not_hold_are_refused():
    ids = np.array([0, 2**40])
    found = message(
        grpo_advantages, np.ones(2), ids, np.ones(2, bool), num_groups=2, spread="none",
        error=ValueError,
    )  # fmt: skip
    assert found == (
        "grpo_advantages: argument 'group_id' must fit int32 unless jax_enable_x64 is set, "
        "found 1099511627776"
    )
    with jax.enable_x64(True), pytest.raises(ValueError, match=r"group_id must lie in \[0, 2\)"):
        grpo_advantages(np.ones(2), ids, np.ones(2, bool), num_groups=2, spread="none")


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.array, float])
def test_scalars_of_numpy_are_hyper_parameters_that_are_checked(kind):
    X2 = np.ones((4, 2))
    expected = gae(X + 1, X + 1, X, X, END, gae_lambda=0.5)
    np.testing.assert_array_equal(gae(X2, X2, 0 * X2, X, END, gae_lambda=kind(0.5)), expected)
    found = message(gae, X, X, X, X, END, gae_lambda=kind(1.5), error=ValueError)
    assert found == "gae: gae_lambda must lie in [0, 1], found 1.5"


def test_static_arguments_may_be_numbers_of_numpy():
    """A size, a flag, an axis; and one of another kind is refused as before."""
    values = np.arange(4.0), np.zeros(4, int), np.ones(4, bool)
    result = grpo_advantages(*values, num_groups=np.int64(1), spread="none")
    np.testing.assert_allclose(result, [-1.5, -0.5, 0.5, 1.5])
    assert masked_mean(np.ones((2, 3)), np.ones((2, 3), bool), axis=np.int64(0)).shape == (3,)
    wrong = message(grpo_advantages, *values, num_groups=np.float64(1), spread="none")
    assert wrong.startswith("grpo_advantages: argument 'num_groups' must be int, found")


def test_numbers_stand_for_arrays_without_axes():
    one = temperature_loss(0.5, np.ones(3), np.ones(3, bool), target_entropy=-1)
    same = temperature_loss(jnp.array(0.5), jnp.ones(3), jnp.ones(3, bool), target_entropy=-1)
    assert one == same
    assert not one.weak_type
    assert float(masked_mean(2, True)) == 2.0
    assert float(categorical_log_prob(np.zeros(4), 3)) == pytest.approx(-np.log(4))
    assert "'action' must be Int[*B], found float 3.0" in message(
        categorical_log_prob, np.zeros(4), 3.0
    )
    assert "'mask' must be Bool[*S], found int 1" in message(masked_mean, X[0, 0], 1)


def test_states_and_rewards_of_numpy():
    """Fields of a NamedTuple, what a caller's function returns, keys, other byte orders."""
    key = np.array([0, 7], np.uint32)
    end, live = np.array([False, True, False, True]), np.ones(4, bool)
    steps = choose_goal_steps(key, end, live, strategy="final")
    assert steps.step.tolist() == [1, 1, 3, 3]
    achieved = np.arange(4.0, dtype=">f4")[:, None]
    relabelled = relabel(
        key, 0 * achieved, achieved, np.zeros(4), GoalSteps(*map(np.asarray, steps)),
        lambda after, goal: (np.asarray(after) == np.asarray(goal)).all(-1).astype(float),
        relabel_ratio=1e9,
    )  # fmt: skip
    assert relabelled.reward.tolist() == [0.0, 1.0, 0.0, 1.0]
    fresh = AdaptiveLambda(1.0, np.array([3.0]), np.int64(1))
    held = adapt_lambda(fresh, np.float64(2.0), growth=2, cap=np.float32(1.5))
    assert [x.tolist() for x in held] == [1.5, [2.0], 2]
    short = GoalSteps(np.zeros(3, int), np.ones(4, bool))
    found = message(
        relabel, key, achieved, achieved, np.zeros(4), short, lambda a, g: a[..., 0],
        relabel_ratio=1,
    )  # fmt: skip
    assert found == "relabel: goal_steps.step must be Int[4], found int32[3]"


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
