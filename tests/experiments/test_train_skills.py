"""Skills as a user trains, takes up, evaluates, exports and loads them, on sizes of seconds."""

import dataclasses
import hashlib
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from PIL import Image

from envs.goals import goal_simulator
from envs.randomise import Randomisation, RandomisedBrax
from experiments import ant_manager, evaluate_skill, train_skills
from experiments.skills_config import GoalConfig, preset, read_command_line, read_config
from jaxagent.models.skills import load_skill
from jaxagent.training.curriculum import CurriculumConfig
from jaxagent.training.metrics import read_metrics
from jaxagent.training.recording import Recording, save_recording

SMALL = (
    "--task reacher_goal --algorithm sac_her --num-envs 8 --unroll-length 5 --total-steps 320 "
    "--num-evaluations 2 --evaluation-episodes 8 --episode-length 10 --batch-size 16 "
    "--updates-per-iteration 2 --buffer-size 400 --learning-starts 40 --encoder-sizes 8 "
    "--policy-hidden-sizes 8 --critic-hidden-sizes 8"
).split()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert train_skills.main([*SMALL, "--runs-dir", str(folder), "--name", "arm"]) == 0
    return folder


def test_the_run_folder_tells_what_happened(runs):
    folder = runs / "arm"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.yaml", "metrics.jsonl", "tensorboard", "checkpoints",
        "curves.png", "paths.png", "rollout.gif", "rollout.html",
    }  # fmt: skip
    saved = yaml.safe_load((folder / "config.yaml").read_text())
    assert saved["sac"]["batch_size"] == 16
    records = read_metrics(folder / "metrics.jsonl")
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    assert [r["iteration"] for r in evaluations] == [0, 4, 8]
    assert {"success_rate", "steps_to_success", "final_distance", "fall_rate"} <= set(
        evaluations[-1]
    )
    trained = [r for r in records if r["kind"] == "train"]
    assert trained[-1]["critic_loss"] > 0
    assert trained[1]["final_distance"] > 0
    with Image.open(folder / "rollout.gif") as image:
        assert image.n_frames > 3


def test_it_does_not_go_on_with_something_else(runs, capsys):
    options = [*SMALL, "--runs-dir", str(runs), "--name", "arm", "--resume"]
    with pytest.raises(SystemExit) as left:
        train_skills.main([*options, "--relabel-share", "0.5"])
    assert left.value.code == 2
    assert "was begun with relabel_share 0.8, not 0.5" in capsys.readouterr().err


def test_a_run_is_evaluated_exported_and_loaded(runs, tmp_path, capsys):
    file = tmp_path / "arm.npz"
    options = [str(runs / "arm"), "--episodes", "8", "--export", str(file)]
    assert evaluate_skill.main(options) == 0
    assert "success_rate" in capsys.readouterr().out
    result = json.loads((runs / "arm" / "evaluation" / "evaluation.json").read_text())
    assert result["episodes"] == 8
    assert result["success_rate_interval_95"][0] <= result["success_rate"]
    assert result["success_rate"] <= result["touched_rate"]
    assert result["reward"] == "sparse"
    skill = load_skill(file)
    assert skill.meta["task"] == "reacher_goal"
    assert skill.meta["steps"] == 320
    assert skill.meta["seed"] == 0
    command = skill.meta["command"]
    assert "experiments.train_skills --task reacher_goal --algorithm sac_her --seed 0" in command
    again = read_command_line(command.split()[3:])
    saved = read_config(runs / "arm" / "config.yaml")
    same = dataclasses.replace(saved.run, name="", runs_dir=again.run.runs_dir)
    assert again == dataclasses.replace(saved, run=same)  # the whole of it stands in the command
    beside = json.loads(file.with_suffix(".json").read_text())
    assert beside["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert (beside["command"], beside["iteration"], beside["steps"]) == (command, 8, 320)
    assert beside["result"]["success_rate"] == result["success_rate"]
    assert skill.meta["result"]["success_rate"] == result["success_rate"]
    _, trainer, state = train_skills.load_run(runs / "arm")
    observation = jnp.linspace(-1, 1, 30).reshape(3, 10)
    learnt = jax.tree.map(lambda x: x[0], state.agent)
    loc, _ = trainer.agent.distribution(learnt, observation)
    np.testing.assert_allclose(skill.act(observation), jnp.tanh(loc), rtol=1e-5)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("train_skills", "--task juggle", "task (juggle) must be one of ant_goal, halfcheetah"),
        ("train_skills", "--algorithm dqn", "algorithm (dqn) must be one of ppo, sac_her"),
        ("train_skills", "--task reacher_goal --reach 0.1 0.5", "reach (0.1, 0.5) must lie in the"),
        ("train_skills", "--threshold 0", "threshold (0.0) must be a positive, finite number"),
        ("train_skills", "--threshold -1", "threshold (-1.0) must be a positive, finite number"),
        ("train_skills", "--algorithm sac_her --relabel-share 1.2", "relabel_share (1.2) must lie"),
        ("train_skills", "--algorithm sac_her --buffer-size 100", "must be at least batch_size"),
        ("train_skills", "--algorithm sac_her --num-envs 12", "must be divisible by sample_groups"),
        ("train_skills", "--num-envs 12", "num_envs (12) must be divisible by shuffle_groups (8)"),
        ("train_skills", "--backend warp", "backend (warp) must be one of spring"),
        ("train_skills", "--on-success stop", "on_success (stop) must be one of end, hold, redraw"),
        ("train_skills", "--resume --name nowhere", "is not a run"),
        ("train_skills", "--config nowhere.yaml", "nowhere.yaml) cannot be read"),
        ("train_skills", "--warm-start nowhere.npz", "recording (nowhere.npz) cannot be read"),
        ("train_skills", "--warm-start no.npz --dry-run", "recording (no.npz) cannot be read"),
        ("train_skills", "--curriculum steep", "curriculum (steep) must be one of off, linear"),
        ("train_skills", "--easy-reach 9 999", "reach (9.0, 999.0) must lie in the workspace"),
        ("train_skills", "--randomise-mass 2 1", "randomise_mass (2.0, 1.0) must be 0 < low"),
        (
            "train_skills",
            "--task reacher_goal --randomise-friction 0.5 2",
            "randomise_friction does nothing to reacher-spring; what can be randomised",
        ),
        ("evaluate_skill", "", "skill must be given"),
        ("evaluate_skill", "juggle", "an .npz file, or (on a command line) a run folder"),
        ("evaluate_skill", "juggle --episodes 0", "episodes (0) must be at least 1"),
        ("evaluate_skill", "juggle --export x.txt", "export (x.txt) must end in .npz"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(tmp_path, capsys, module, arguments, message):
    where = ["--runs-dir", str(tmp_path)] if module == "train_skills" else []
    with pytest.raises(SystemExit) as left:
        importlib.import_module(f"experiments.{module}").main([*arguments.split(), *where])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_the_options_that_it_does_not_show(capsys):
    for main, other in ((train_skills.main, "sac_her"), (ant_manager.main, "sac")):
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        assert f"--algorithm {other} --help" in " ".join(capsys.readouterr().out.split())


def test_a_recording_of_another_task_is_refused(tmp_path, capsys):
    one, many = np.zeros((2, 3), np.float32), np.zeros((2, 3, 5), np.float32)
    save_recording(
        tmp_path / "other.npz",
        Recording(many, many, many, one, one > 0, one > 0, one > 0, task="pusher_goal-spring"),
    )
    options = ["--warm-start", str(tmp_path / "other.npz"), "--runs-dir", str(tmp_path / "runs")]
    with pytest.raises(SystemExit) as left:
        train_skills.main([*SMALL, *options])
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert "is of pusher_goal-spring with 5 observations and 5 actions; this run is of" in said
    assert not (tmp_path / "runs").exists()


def test_physics_is_drawn_for_training_and_for_evaluation():
    """A curriculum begins with the model as it is; evaluations are of the task itself."""
    config = dataclasses.replace(
        preset("reacher_goal", "sac_her"),
        randomisation=Randomisation(randomise_mass=(0.5, 2.0)),
        difficulty=CurriculumConfig(curriculum="linear"),
    )
    training, evaluated = train_skills.simulators(config)
    assert training.simulator.strength == 0.0
    assert evaluated.simulator.strength == 1.0
    assert train_skills.make_curriculum(config) is not None
    plain = train_skills.simulators(preset("reacher_goal", "sac_her"))[0]
    assert not isinstance(plain.simulator, RandomisedBrax)


def test_a_file_that_is_no_skill_is_refused(tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, x=np.zeros(3))
    with pytest.raises(ValueError, match=r"is not a file of the format jaxagent\.skill\.1"):
        load_skill(path)
    path.write_text("no archive")
    with pytest.raises(ValueError, match="is not a file of the format"):
        load_skill(path)


@pytest.mark.parametrize("algorithm", ["ppo", "sac_her"])
@pytest.mark.parametrize("task", ["ant_goal", "halfcheetah_velocity", "pusher_goal"])
def test_every_task_has_defaults_for_every_algorithm(task, algorithm):
    config = preset(task, algorithm)
    assert config.algorithm == algorithm
    assert config.run.episode_length > 0
    assert config.spec().threshold > 0


def test_a_dry_run_prints_and_writes_nothing(tmp_path, capsys):
    assert train_skills.main([*SMALL, "--dry-run", "--runs-dir", str(tmp_path)]) == 0
    resolved, _, told = capsys.readouterr().out.partition("\n}\n")
    assert json.loads(resolved + "}")["sac"]["batch_size"] == 16
    assert "goals: reach 0 to 0.2, threshold 0.05, sparse reward, hold on success" in told
    assert list(tmp_path.iterdir()) == []


def test_evaluation_draws_one_goal_an_episode():
    config = preset("ant_goal", "ppo")
    training, evaluated = train_skills.simulators(config)
    assert training.spec.on_success == "redraw"
    assert evaluated.spec.on_success == "end"
    assert goal_simulator("reacher_goal").spec.on_success == "hold"
    assert training.name == "ant_goal-spring"


def test_a_skill_is_evaluated_by_the_reward_and_the_physics_of_its_run():
    """Not by the task's own: dense here, on a body whose mass is drawn."""
    config = dataclasses.replace(
        preset("reacher_goal", "sac_her"),
        goals=GoalConfig(reward="dense", fall_cost=3.0),
        randomisation=Randomisation(randomise_mass=(0.5, 2.0)),
    )
    meta = json.loads(json.dumps(evaluate_skill.describe(config)))  # as a file keeps it
    skill = dataclasses.replace(load_skill("reacher_goal"), meta=meta)
    options = evaluate_skill.EvaluateSkillConfig(skill="x", episodes=4)
    _, simulator = evaluate_skill.evaluator(skill, options)
    assert simulator.spec == train_skills.simulators(config)[1].spec
    assert (simulator.spec.reward, simulator.spec.fall_cost) == ("dense", 3.0)
    body = simulator.simulator
    assert isinstance(body, RandomisedBrax)
    assert body.strength == 1.0
    assert body.randomisation == config.randomisation


def test_a_saturated_policy_that_knows_nothing_does_not_succeed():
    """It whirls the arm past nearly every goal, and holds none."""
    skill = load_skill("reacher_goal")
    params = jax.tree.map(np.array, skill.params)
    layers = params.policy_params["params"]
    fresh = skill.policy.init(jax.random.key(0), jnp.zeros((1, 10)))["params"]
    wild = {**fresh, "loc": {**fresh["loc"], "kernel": 1500.0 * fresh["loc"]["kernel"]}}
    assert set(wild) == set(layers)
    skill = dataclasses.replace(skill, params=params.replace(policy_params={"params": wild}))
    trainer, _ = evaluate_skill.evaluator(
        skill, evaluate_skill.EvaluateSkillConfig(skill="x", episodes=200)
    )
    _, figures = evaluate_skill.play(skill, trainer, 0)
    assert figures["touched_rate"] > 0.5
    assert figures["success_rate"] < 0.05
