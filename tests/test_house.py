"""The house itself: what may import what, and that the losses stand alone."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
HEAVY = ("flax", "optax", "brax", "transformers", "orbax", "chex")


def test_losses_import_nothing_of_the_rest():
    """In a process in which the rest cannot be imported at all."""
    program = (
        "import sys\n"
        f"for name in {HEAVY!r}: sys.modules[name] = None\n"
        "from jaxagent.losses import gae\n"
        "import jaxagent.losses\n"
        "assert 'jaxagent.models' not in sys.modules and 'envs' not in sys.modules\n"
        "print(len(jaxagent.losses.__all__))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 30


def test_the_import_contracts_hold():
    pytest.importorskip("importlinter")
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("folder", ["jaxagent", "envs", "experiments", "benchmarks"])
def test_no_drawer_for_leftovers(folder):
    leftovers = {"utils", "util", "common", "helpers", "helper", "base", "misc"}
    names = {path.stem for path in (ROOT / folder).rglob("*")}
    assert not names & leftovers


def stored(function: ast.AST) -> set[str]:
    """Attributes of self that a function assigns."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def called(function: ast.AST) -> set[str]:
    """Methods of self that a function calls."""
    return {
        node.func.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "self"
    }


def born_late(source: str) -> list[str]:
    """Attributes that appear neither in a class's body, its constructor, nor what that calls."""
    late = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        methods = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
        known = {
            name.id
            for statement in node.body
            if isinstance(statement, ast.AnnAssign | ast.Assign)
            for name in ast.walk(statement)
            if isinstance(name, ast.Name)
        }
        constructing = {"__init__", "__post_init__", "setup"} & methods.keys()
        for name in constructing.copy():
            constructing |= called(methods[name]) & methods.keys()
        for name in constructing:
            known |= stored(methods[name])
        late += [
            f"{node.name}.{name}: {attribute}"
            for name, method in methods.items()
            for attribute in sorted(stored(method) - known)
        ]
    return late


@pytest.mark.parametrize("folder", ["jaxagent", "envs", "experiments", "benchmarks"])
def test_state_is_born_in_constructors(folder):
    late = {
        str(path.relative_to(ROOT)): found
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (found := born_late(path.read_text()))
    }
    assert not late


def test_an_attribute_that_appears_later_is_found():
    source = "class A:\n def __init__(self):\n  self.a = 1\n def b(self):\n  self.a = self.c = 2\n"
    assert born_late(source) == ["A.b: c"]
    begun = "class A:\n def __init__(self):\n  self.b()\n def b(self):\n  self.c = 2\n"
    assert born_late(begun) == []
