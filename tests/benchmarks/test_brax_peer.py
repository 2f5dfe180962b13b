"""The shim, and a training that is asked for its next epoch instead of calling back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.brax_peer import BraxPPO, device_put_replicated_restored, held


def test_shim_leaves_a_jax_that_has_the_function_alone(monkeypatch):
    own = object()
    monkeypatch.setattr(jax, "device_put_replicated", own, raising=False)
    with device_put_replicated_restored():
        assert jax.device_put_replicated is own
    assert jax.device_put_replicated is own


@pytest.mark.skipif(hasattr(jax, "device_put_replicated"), reason="this JAX still has it")
def test_shim_goes_away_again():
    def fail_inside():
        with device_put_replicated_restored():
            assert hasattr(jax, "device_put_replicated")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not hasattr(jax, "device_put_replicated")


def test_shim_puts_one_copy_on_each_device():
    devices = jax.local_devices()[:2]
    tree = {"scalar": 3, "matrix": jnp.arange(6.0).reshape(2, 3)}
    with device_put_replicated_restored():
        placed = jax.device_put_replicated(tree, devices)
    assert placed["scalar"].shape == (2,)
    for shard, device in zip(placed["matrix"].addressable_shards, devices, strict=True):
        assert shard.device == device
        np.testing.assert_array_equal(shard.data[0], tree["matrix"])
    total = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(placed["matrix"])
    np.testing.assert_array_equal(total[0], 2 * tree["matrix"])


def test_held_training_works_only_while_asked():
    log = []

    def train(progress):
        for step in range(3):
            log.append(step)
            progress(step, {"reward": 10.0 * step})

    training = held(train)
    assert log == []
    _, step, metrics = next(training)
    assert (step, metrics, log) == (0, {"reward": 0.0}, [0])
    assert [step for _, step, _ in training] == [1, 2]


def test_closing_a_held_training_stops_it():
    log = []

    def train(progress):
        try:
            for step in range(10):
                progress(step, {})
                log.append(step)
        finally:
            log.append("left")

    training = held(train)
    next(training)
    next(training)
    training.close()
    assert log == [0, "left"]


def test_a_failure_of_the_peer_reaches_whoever_waits():
    def train(progress):
        progress(0, {})
        raise FloatingPointError("diverged")

    training = held(train)
    next(training)
    with pytest.raises(FloatingPointError, match="diverged"):
        next(training)


def test_steps_of_an_update_are_counted_in_environment_steps():
    assert BraxPPO(num_timesteps=1, num_evals=1).steps_per_update == 163_840
