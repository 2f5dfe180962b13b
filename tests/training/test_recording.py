"""Recordings: made, written, read, refused, and started from."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.vector import VectorEnv
from jaxagent.agents.behaviour_cloning import CloningConfig
from jaxagent.training.recording import load_recording, record, save_recording, warm_start
from jaxagent.types import PolicySample
from tests.agents.plane import point_task, straight
from tests.training.probe_run import make_trainer, run_config


def damaged(content: bytes):
    """Thirty pieces of a file, and thirty copies with one bit of the first half turned."""
    generator = np.random.default_rng(0)
    for cut in generator.integers(0, len(content), 30):
        yield content[:cut]
    for place in generator.integers(60, len(content) // 2, 30):
        yield content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :]


SIZES = {"observation_size": 4, "action_size": 2}


def walk(observation, keys) -> PolicySample:
    action = 0.9 * straight(observation, keys)
    return PolicySample(action, jnp.arctanh(action), jnp.zeros(action.shape[:-1]))


@pytest.fixture(scope="module")
def recording():
    env = VectorEnv(point_task("end"), episode_length=30)
    return record(env, walk, jax.random.key(0), num_envs=4, length=60, task="point")


def test_it_holds_what_happened(recording):
    assert recording.steps == 240
    assert recording.observation.shape == (60, 4, 4)
    np.testing.assert_allclose(recording.action, np.tanh(recording.pre_tanh), atol=1e-6)
    assert recording.success.sum() >= 4 * 4
    assert (recording.success == recording.terminated).all()
    # Side by side: one environment's steps follow each other but for the resets.
    place = np.asarray(recording.demonstrations().observation)[:, :2].reshape(4, 60, 2)
    jumps = np.linalg.norm(np.diff(place, axis=1), axis=-1) > 0.5
    assert (jumps <= recording.terminated.T[:, :-1]).all()


def test_it_comes_back_from_the_file(recording, tmp_path):
    path = tmp_path / "walk.npz"
    save_recording(path, recording)
    back = load_recording(path, task="point", **SIZES)
    for ours, theirs in zip(recording, back):
        np.testing.assert_array_equal(ours, theirs)
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_refused(recording, tmp_path):
    path = tmp_path / "walk.npz"
    save_recording(path, recording)
    refused = [
        (path, {"task": "reacher"} | SIZES, r"is of point with 4 observations .* of reacher"),
        (path, {"task": "point", **SIZES, "action_size": 3}, r"2 actions; this run .* 4 and 3"),
        (tmp_path / "no.npz", {"task": "point"} | SIZES, r"cannot be read: No such file"),
    ]
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "cut.npz").write_bytes(path.read_bytes()[:300])
    np.savez(tmp_path / "other.npz", meta=np.array(json.dumps({"format": "x"})))
    np.savez(tmp_path / "arrays.npz", x=np.zeros(3))
    for name in ("text", "cut", "other", "arrays"):
        wanted = {"task": "point"} | SIZES
        refused.append((tmp_path / f"{name}.npz", wanted, r"cannot be read: it is no recording"))
    for file, wanted, message in refused:
        with pytest.raises(ValueError, match=message) as refusal:
            load_recording(file, **wanted)
        assert "\n" not in str(refusal.value)
        assert str(file) in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": np.zeros((60, 3), np.float32)}, r"has shape \[60, 4.*reward \[60, 3\]"),
        ({"action": np.zeros((60, 4, 3), np.float32)}, "action and pre_tanh must have one shape"),
        (
            {"observation": np.full((60, 4, 4), np.nan)},
            "observation holds numbers that are not fin",
        ),
        ({"action": np.full((60, 4, 2), np.inf)}, "action holds numbers that are not finite"),
        ({"success": np.full((60, 4), "yes")}, "success holds <U3, not numbers"),
    ],
)
def test_arrays_that_do_not_belong_together_are_refused(recording, tmp_path, changes, message):
    path = tmp_path / "odd.npz"
    save_recording(path, recording._replace(**changes))
    with pytest.raises(ValueError, match=message) as refusal:
        load_recording(path, task="point", **SIZES)
    assert str(refusal.value).startswith(f"recording ({path})")


def test_a_recording_that_is_cut_or_has_a_wrong_bit_is_refused(recording, tmp_path):
    path = tmp_path / "walk.npz"
    save_recording(path, recording)
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read: it is no recording or not whole"):
            load_recording(path, task="point", **SIZES)


def test_a_run_starts_from_it_on_its_own_devices(recording):
    """Two seeds on two devices; the state goes into the compiled program as it is."""
    run = run_config(num_seeds=2)
    trainer = make_trainer(run, point_task("end"), num_devices=2)
    fresh = trainer.init([0, 1])
    config = CloningConfig(cloning_steps=300, cloning_batch_size=32, cloning_learning_rate=1e-2)
    state, metrics = warm_start(trainer, fresh, recording, config)
    assert metrics["cloning_loss_after"].shape == (2,)
    assert (metrics["cloning_loss_after"] < 0.2 * metrics["cloning_loss_before"]).all()
    assert jax.tree.map(lambda x: x.sharding, state) == jax.tree.map(lambda x: x.sharding, fresh)
    evaluate, seeds = trainer.compile_evaluation(fresh), trainer.replicate(np.zeros(2, "i4"))
    played = [evaluate(each.agent, seeds) for each in (fresh, state)]
    assert np.mean(played[1].success) > np.mean(played[0].success) + 0.3
