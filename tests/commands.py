"""The command lines that documents show, and the real parser of each module, without running it."""

import argparse
import ast
import importlib
import inspect
import pathlib
import re
import shlex
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parent.parent
_COMMAND = re.compile(r"python -m ((?:jaxagent|envs|experiments|benchmarks)[\w.]*)(?: +(.*))?")
_PLACEHOLDERS = {"N": "3", "S": "0", "THREADS": "1"}


class Command(NamedTuple):
    """One command line and the document that it stands in."""

    document: str
    module: str
    arguments: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.document, self.module, *self.arguments))


def all_commands() -> list[Command]:
    """Those of every document: pages, the Makefile, and the docstrings of the code."""
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Makefile"]
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    texts |= {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}
    for folder in ("jaxagent", "envs", "experiments", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            texts[str(path.relative_to(ROOT))] = "\n".join(_docstrings(path))
    found = [command for name, text in sorted(texts.items()) for command in commands_in(text, name)]
    return list(dict.fromkeys(found))


def commands_in(text: str, document: str) -> list[Command]:
    """The commands in a text: whole lines that begin with one, and what stands in backticks."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if re.match(r"(\$\(BIN\)/|\.venv/bin/)?python -m ", line)]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    spans = [" ".join(span.split()) for _, span in re.findall(r"(`{1,2})([^`]+)\1", prose)]
    return [
        Command(document, found[1], _words(found[2] or ""))
        for each in (*lines, *spans)
        if (found := _COMMAND.search(each))
    ]


def _words(arguments: str) -> tuple[str, ...]:
    """The words of a command: optional ones are given, and names in capitals stand for values."""
    arguments = re.sub(r"\$\(\w+\)|\.\.\.", "", arguments)
    arguments = re.sub(r"\{([^,}]*)[^}]*\}", r"\1", arguments.replace("[", "").replace("]", ""))
    return tuple(_PLACEHOLDERS.get(w, w) for w in shlex.split(arguments, comments=True))


def _docstrings(path: pathlib.Path) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, kinds)]


def modules_that_run() -> list[str]:
    """Every module of ours that ``python -m`` runs."""
    found = []
    for folder in ("jaxagent", "envs", "experiments", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            if '\nif __name__ == "__main__":' in path.read_text(encoding="utf-8"):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                found.append(name.removesuffix(".__main__"))
    return sorted(found)


class Parsed(BaseException):
    """The command line was read to its end; nothing has been done yet."""


def program(module: str):
    """What ``python -m module`` calls with the arguments; None where it takes none."""
    loaded = importlib.import_module(module)
    if hasattr(loaded, "__path__"):
        loaded = importlib.import_module(f"{module}.__main__")
    return loaded if inspect.signature(loaded.main).parameters else None


def parse(module: str, arguments: tuple[str, ...] | list[str]) -> None:
    """Reads a command line with the module's own parser and leaves before anything is done.

    Raises:
        SystemExit: as the module itself does with a command line that it refuses.
    """

    def then_leave(read):
        def call(*given, **named):
            read(*given, **named)
            raise Parsed

        return call

    loaded = program(module)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("read_command_line", "parse_command_line"):
            if hasattr(loaded, name):
                patch.setattr(loaded, name, then_leave(getattr(loaded, name)))
        whole = argparse.ArgumentParser.parse_args
        patch.setattr(argparse.ArgumentParser, "parse_args", then_leave(whole))
        with pytest.raises(Parsed):
            loaded.main(list(arguments))
