"""What a run does is recorded."""

import json

import jax
import numpy as np
import pytest

from experiments import record, train_skills
from jaxagent.training.recording import load_recording
from tests.experiments.test_train_skills import SMALL

SIZES = {"observation_size": 10, "action_size": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert train_skills.main([*SMALL, "--runs-dir", str(folder), "--name", "arm"]) == 0
    return folder / "arm"


def test_a_run_is_recorded(run, capsys):
    assert record.main([str(run), "--steps", "90", "--num-envs", "4"]) == 0
    recording = load_recording(run / "recording.npz", task="reacher_goal-spring", **SIZES)
    assert recording.steps == 92  # rounded up to 23 for each of 4
    assert "92 steps of reacher_goal-spring, 8 episodes ended" in capsys.readouterr().out
    assert recording.truncated.sum(axis=0).tolist() == [2, 2, 2, 2]
    with np.load(run / "recording.npz") as file:
        assert json.loads(str(file["meta"]))["made"] == {
            "run": "arm", "iteration": 8, "seed": 2_000_000, "num_envs": 4, "deterministic": False,
        }  # fmt: skip


def test_with_and_without_exploration(run):
    _, trainer, state = record.load_any_run(run)
    observation = np.linspace(-1, 1, 50 * 10, dtype=np.float32).reshape(50, 10)
    keys = jax.random.split(jax.random.key(0), 50)
    loc, scale = trainer.agent.distribution(jax.tree.map(lambda x: x[0], state.agent), observation)
    mean = record.as_policy(trainer, state, deterministic=True)(observation, keys)
    np.testing.assert_allclose(mean.action, np.tanh(loc), rtol=1e-6)
    drawn = record.as_policy(trainer, state, deterministic=False)(observation, keys)
    np.testing.assert_allclose(drawn.action, np.tanh(drawn.pre_tanh), atol=1e-6)
    assert 0.7 < np.std((drawn.pre_tanh - loc) / scale) < 1.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "folder must be given"),
        ("nowhere", "nowhere is not a run folder"),
        ("nowhere --steps 0", "steps (0) must be at least 1"),
        ("nowhere --out nowhere/x.npz", "must lie in a folder that exists"),
        ("nowhere --seed -1", "seed (-1) must lie in [0, 2^31)"),
    ],
)
def test_a_mistake_is_one_line(capsys, options, message):
    with pytest.raises(SystemExit) as left:
        record.main(options.split())
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
