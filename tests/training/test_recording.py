"""Recordings: made, written, read, refused, and started from."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.vector import VectorEnv
from jaxagent.agents.behaviour_cloning import CloningConfig
from jaxagent.training.loop import NonFiniteTraining
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


def test_a_recording_that_is_cut_or_has_a_wrong_bit_is_refused(recording, tmp_path):
    path = tmp_path / "walk.npz"
    save_recording(path, recording)
    for content in damaged(path.read_bytes()):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read: it is no recording or not whole"):
            load_recording(path, task="point", **SIZES)


def changed(recording, name, index, value):
    array = getattr(recording, name).copy()
    array[index] = value
    return recording._replace(**{name: array})


@pytest.mark.parametrize(
    ("name", "index", "value", "message"),
    [
        ("action", (3, 1, 0), 1.01, r"action must lie in \[-1, 1\], found 1.0.* at \[3, 1, 0\]"),
        ("action", (0, 0, 1), -2.0, r"action must lie in \[-1, 1\], found -2.0 at \[0, 0, 1\]"),
        ("action", (2, 0, 0), np.nan, r"action must be finite, found nan at \[2, 0, 0\]"),
        ("observation", (5, 3, 2), np.nan, r"observation must be finite, found nan at \[5, 3, 2\]"),
        ("observation", (5, 3, 2), -np.inf, r"observation must be finite, found -inf at"),
        ("reward", (9, 2), np.inf, r"reward must be finite, found inf at \[9, 2\]"),
        ("pre_tanh", (4, 1, 1), np.nan, r"pre_tanh must be what tanh makes .* nan at \[4, 1, 1\]"),
        ("pre_tanh", (4, 1, 1), 5.0, r"pre_tanh must be what tanh makes .* 5.0 at \[4, 1, 1\]"),
    ],
)
def test_numbers_outside_their_domain_are_refused(recording, tmp_path, name, index, value, message):
    path = tmp_path / "odd.npz"
    save_recording(path, changed(recording, name, index, value))
    with pytest.raises(ValueError, match=message) as refusal:
        load_recording(path, task="point", **SIZES)
    assert str(refusal.value).startswith(f"recording ({path}): ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("reward", lambda x: x[:-1], r"reward must have the axes \[60, 4\] .* found \[59, 4\]"),
        ("action", lambda x: x[..., 0], r"action must have the axes .* found \[60, 4\]"),
        ("pre_tanh", lambda x: x[..., :1], r"pre_tanh \[60, 4, 1\] must have the shape of action"),
        ("success", lambda x: x.astype("U5"), r"success must hold numbers, found <U5"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(recording, tmp_path, name, make, message):
    path = tmp_path / "odd.npz"
    save_recording(path, recording._replace(**{name: make(getattr(recording, name))}))
    with pytest.raises(ValueError, match=message):
        load_recording(path, task="point", **SIZES)


def test_a_recording_of_no_steps_is_refused(recording, tmp_path):
    path = tmp_path / "none.npz"
    empty = recording._replace(**{n: getattr(recording, n)[:0] for n in recording._fields[:-1]})
    save_recording(path, empty)
    with pytest.raises(ValueError, match=r"none empty, found \[0, 4, 4\]"):
        load_recording(path, task="point", **SIZES)


@pytest.mark.parametrize("undone", [np.inf, np.nan])
def test_actions_at_the_bounds_are_loaded_clipped_and_undone(recording, tmp_path, undone):
    """A robot's log has ±1 exactly, or beyond by what rounding makes of it."""
    path = tmp_path / "edge.npz"
    edges = changed(changed(recording, "action", (0, 0, 0), 1.0), "action", (1, 2, 1), -1.00001)
    edges = changed(changed(edges, "pre_tanh", (0, 0, 0), undone), "pre_tanh", (1, 2, 1), -undone)
    save_recording(path, edges)
    back = load_recording(path, task="point", **SIZES)
    assert np.abs(back.action).max() == 1.0
    np.testing.assert_allclose(back.pre_tanh[[0, 1], [0, 2], [0, 1]], [7.25, -7.25], atol=0.1)
    np.testing.assert_array_equal(back.pre_tanh[2:], recording.pre_tanh[2:])


def test_a_warm_start_whose_loss_is_not_finite_stops(recording):
    trainer = make_trainer(run_config(), point_task("end"))
    bad = changed(recording, "action", (59, 3, 0), np.nan)
    config = CloningConfig(cloning_steps=2, cloning_batch_size=8)
    with pytest.raises(NonFiniteTraining, match=r"^the warm start's squared_error loss is not fin"):
        warm_start(trainer, trainer.init([0]), bad, config)


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
