"""Configuration: precedence, types, and one clear line for a mistake."""

import dataclasses
import inspect

import pytest
import yaml

from experiments.ant_config import AntConfig, read_command_line
from jaxagent.training.config import RunConfig, overlay, read_yaml, to_plain


def read(*arguments: str) -> AntConfig:
    return read_command_line(arguments, "cpu")


def complaint(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        read(*arguments)
    assert left.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_the_command_line_wins_over_the_file_and_the_file_over_the_preset(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("num_envs: 128\nppo: {clip_epsilon: 0.3, policy_learning_rate: 1e-4}\n")
    config = read("--config", str(file), "--clip-epsilon", "0.1")
    assert config.run.num_envs == 128
    assert config.ppo.clip_epsilon == 0.1
    assert config.ppo.policy_learning_rate == 1e-4
    assert config.run.total_steps == read().run.total_steps


def test_presets_differ_by_machine_and_task():
    assert read_command_line([], "gpu").run.num_envs == 2048
    assert read("--preset", "gpu").run.num_envs == 2048
    assert read().guidance.guidance_terms == ("velocity_saturated",)
    assert read("--task", "corner").guidance.guidance_terms == ("plan",)


def test_a_file_may_choose_the_task(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("task: corner\n")
    assert read("--config", str(file)).guidance.guidance_terms == ("plan",)


def test_what_is_saved_is_read_back(tmp_path):
    config = read("--task", "corner", "--target-kl", "0.02", "--policy-hidden-sizes", "8", "9")
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(to_plain(config)))
    assert overlay(AntConfig(), read_yaml(file), "test") == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-envs", "many"), "--num-envs: invalid"),
        (("--total-steps", "1e6"), "invalid value 1e6: it must be a whole number; write 1000000"),
        (("--gae-lambda", "x"), "--gae-lambda: invalid value x: it must be a number\n"),
        (("--flight", "3"), "error: unknown option --flight; --help lists all"),
        (("--num-env", "64"), "error: unknown option --num-env (did you mean --num-envs?)"),
        (("--no_compar", "--seed=1"), "option --no_compar (did you mean --no-compare"),
        (("--compare", "3"), "error: unexpected 3: --help shows"),
        (("--num-envs", "0"), "error: num_envs (0) must be at least 1"),
        (("--num-envs", "20"), "error: num_envs (20) must be divisible by shuffle_groups (8)"),
        (
            ("--num-envs", "2048", "--unroll-length", "10", "--num-minibatches", "3"),
            "num_envs * unroll_length (2048 * 10) must be divisible by shuffle_groups * "
            "num_minibatches (8 * 3)",
        ),
        (("--gae-lambda", "2"), "gae_lambda (2.0) must lie in [0, 1]"),
        (("--task", "swim"), "task (swim) must be one of run, corner"),
        (("--preset", "tpu"), "preset (tpu) must be one of auto, cpu, gpu"),
        (("--backend", "havok"), "backend (havok) must be one of spring"),
        (("--planner", "nowhere"), "error: planner (nowhere) must be rule, a plan file"),
        (("--planner", f"{'far/' * 40}x.yaml"), f"({'far/' * 40}x.yaml): there is no such file"),
        (("--total-steps", "100"), "total_steps (100) must be at least num_envs * unroll_length"),
        (("--seed", "-1"), "seed (-1) must lie in"),
        (("--name", "../up"), "name ('../up') may hold"),
        (("--config", "nowhere.yaml"), "config (nowhere.yaml) cannot be read: No such file"),
        (("--compare", "--removal-test", "3"), "compare and removal_test cannot be combined"),
        (("--guidance-terms", "flight"), "guidance_terms (flight) must be among"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(capsys, arguments, message):
    assert message in complaint(capsys, *arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num_env: 3\n", "unknown option 'num_env'; known: "),
        ("num_envs: many\n", "num_envs ('many') must be of type int"),
        ("num_envs: true\n", "num_envs (True) must be of type int"),
        ("ppo: 3\n", "ppo must be a mapping"),
        ("ppo: {clip: 1}\n", "unknown option 'clip'"),
        ("- 3\n", "must be a mapping of options"),
        ("a: [\n", "options.yaml:2) is not YAML: expected the node content, but found"),
        ("a: \t1\nb: '\x07'\n", "is not YAML: special characters are not allowed"),
        ("seed: 1\nppo: {}\nseed: 2\n", "options.yaml:3): seed is given twice"),
        ("ppo: {clip_epsilon: 1,\n  clip_epsilon: 2}\n", "yaml:2): clip_epsilon is given twice"),
        ("total_steps: 1.5e0\n", "total_steps ('1.5e0') must be of type int"),
        ("clip_epsilon: 0\n", "clip_epsilon (0.0) must be a positive"),
        ("a: " + "[" * 2000 + "]" * 2000, "options.yaml) is nested too deep to be read"),
        ("seed: " + "1" * 5000, "options.yaml) is not YAML"),
        ("seed: !!bool maybe", "options.yaml) is not YAML"),
        ("seed: !!timestamp soon", "options.yaml) is not YAML"),
        ("seed: 2024-13-45", "options.yaml) is not YAML"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(capsys, tmp_path, text, message):
    file = tmp_path / "options.yaml"
    file.write_text(text)
    said = complaint(capsys, "--config", str(file))
    assert message in said
    assert str(file) in said or "must be a positive" in said


def test_a_file_may_be_empty_and_say_things_in_other_ways(tmp_path):
    file = tmp_path / "options.yaml"
    file.write_text("# nothing yet\n")
    assert dataclasses.replace(read("--config", str(file)), config=None) == read()
    file.write_text("total_steps: 1e6\nnum_envs: 64.0\nname: 1e3\n")
    run = read("--config", str(file)).run
    assert (run.total_steps, run.num_envs, run.name) == (1_000_000, 64, "1e3")
    assert type(run.total_steps) is type(run.num_envs) is int
    file.write_text("one: &one {a: 1, b: 2}\ntwo: {<<: *one, a: 3}\n")
    assert read_yaml(file)["two"] == {"a": 3, "b": 2}


def test_every_option_has_help():
    for kind in (AntConfig, RunConfig, type(AntConfig().ppo), type(AntConfig().guidance)):
        source = inspect.getsource(kind)
        for field in dataclasses.fields(kind):
            if dataclasses.is_dataclass(getattr(AntConfig(), field.name, None)):
                continue
            after = source.split(f"    {field.name}: ", 1)[1].split("\n", 1)[1]
            assert after.lstrip().startswith('"""'), field.name


@pytest.mark.parametrize(("iterations", "asked"), [(23, 12), (24, 12), (13, 12), (5, 12), (7, 1)])
def test_there_are_as_many_evaluations_as_were_asked_for(iterations, asked):
    run = RunConfig(
        total_steps=iterations * 128, num_envs=16, unroll_length=8, num_evaluations=asked
    )
    at = run.evaluation_iterations
    assert len(at) == min(asked, iterations)
    assert at[-1] == iterations
    distances = {after - before for before, after in zip((0, *at), at)}
    assert max(distances) - min(distances) <= 1


def test_iterations_cover_the_steps():
    run = RunConfig(total_steps=1000, num_envs=16, unroll_length=8)
    assert run.num_iterations == 8
    assert run.num_iterations * 16 * 8 >= 1000
