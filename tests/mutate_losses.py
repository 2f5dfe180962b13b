"""Mutation check of floor 0: change one operator at a time, and see whether the tests notice.

    python -m tests.mutate_losses [FILE.py ...] [--seconds 280]

Every mutant lives in a copy of the package in a temporary folder, and is tested in a child of
one warm process: forking costs far less than importing JAX again. Results are kept in
`.cache/mutants.json`, so that the work can be done in slices; a mutant whose source has not
changed since is not run again. Prints the share caught and the survivors, and fails where fewer
than 95 % are caught or a survivor is not explained in `tests/losses/mutants.md`.
"""

import argparse
import ast
import copy
import hashlib
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOSSES = ROOT / "jaxagent" / "losses"
STATE = ROOT / ".cache" / "mutants.json"
EXPLAINED = ROOT / "tests" / "losses" / "mutants.md"
BAR = 0.95
LIMIT_SECONDS = 120

OPERATORS: dict[type, list[type]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div],
    ast.Div: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}
CALLS = {
    "minimum": "maximum",
    "maximum": "minimum",
    "min": "max",
    "cummin": "cummax",
    "cummax": "cummin",
    "segment_min": "segment_max",
    "any": "all",
    "all": "any",
}
# The tests that know a module best; the table's cases of its functions follow by themselves.
TESTS = {
    "contract": ["test_contract", "test_credit", "test_group"],
    "imitation": ["test_tokens"],
    "segments": ["test_credit"],
}


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """The node with its operator replaced, in every way that is tried."""
    if isinstance(node, ast.BinOp | ast.BoolOp):
        for operator in OPERATORS.get(type(node.op), []):
            yield _with(node, op=operator())
    if isinstance(node, ast.Compare):
        for operator in OPERATORS.get(type(node.ops[0]), []):
            yield _with(node, ops=[operator(), *node.ops[1:]])
    if isinstance(node, ast.UnaryOp):
        yield node.operand
    if isinstance(node, ast.Attribute) and node.attr in CALLS:
        yield _with(node, attr=CALLS[node.attr])


def _with(node: ast.AST, **fields) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


class _Replace(ast.NodeTransformer):
    """Replaces the n-th operator outside annotations, and notes what became of it."""

    def __init__(self, target: int):
        self.target, self.count, self.label = target, -1, None
        self.where = ["module"]

    def visit_FunctionDef(self, node):
        self.where.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self.where.pop()
        return node

    def visit_AnnAssign(self, node):
        return node

    def visit_Assign(self, node):
        # Module-level aliases such as `Scalar = float | int` are types, not arithmetic.
        return node if self.where == ["module"] else self.generic_visit(node)

    def generic_visit(self, node):
        for other in changed(node):
            self.count += 1
            if self.count == self.target:
                self.label = f"{self.where[-1]}: `{ast.unparse(node)}` -> `{ast.unparse(other)}`"
                return other
        return super().generic_visit(node)


def mutants(path: Path) -> Iterator[tuple[str, str]]:
    """Labels and sources of every mutant of a file."""
    source, seen = path.read_text(), {}
    for target in range(10_000):
        replacer = _Replace(target)
        tree = replacer.visit(ast.parse(source))
        if replacer.label is None:
            return
        label = f"{path.name} {replacer.label}"
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            label += f" ({seen[label]})"
        yield label, ast.unparse(ast.fix_missing_locations(tree))


def arguments(module: str, folder: Path) -> list[str]:
    """What pytest runs for a module: its own tests, then the table's cases of its functions."""
    files = TESTS.get(module, [f"test_{module}"])
    tree = ast.parse((LOSSES / f"{module}.py").read_text())
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list]
    selected = " or ".join([*files, *names])
    paths = [str(folder / "tests" / "losses" / f"{f}.py") for f in [*files, "test_table"]]
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    return [*options, "-c", str(folder / "pyproject.toml"), *paths, "-k", selected]


def verdict(source: str, name: str, folder: Path) -> str:
    """What the tests say of this source of a module: the first that fails, "" if all pass.

    Nothing else is a verdict: where pytest ends in any other way, or its seconds of CPU are used
    up, that is an error and not a mutant caught.
    """
    target = folder / "jaxagent" / "losses" / name
    original, failed = target.read_text(), folder / "failed"
    target.write_text(source)
    failed.write_text("")
    try:
        child = os.fork()
        if child == 0:
            _run_tests(arguments(name.removesuffix(".py"), folder), folder, failed)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        target.write_text(original)
    if status not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {status} on a mutant of {name}, which says nothing")
    test = failed.read_text()
    if bool(status) != bool(test):
        raise SystemExit(f"pytest ended with {status} on {name} and named {test!r} as failed")
    return test


def _run_tests(chosen: list[str], folder: Path, failed: Path) -> None:
    """In the child: run the tests in silence, note which failed, and end with their status."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    import pytest

    os._exit(int(pytest.main(chosen, plugins=[_CompileFast(), _NoteFailure(failed)])))


class _NoteFailure:
    """Writes down the first test, or file that cannot even be imported, that fails."""

    def __init__(self, path: Path):
        self.path = path

    def pytest_runtest_logreport(self, report):
        if report.failed and not self.path.read_text():
            self.path.write_text(report.nodeid)

    def pytest_collectreport(self, report):
        if report.failed and not self.path.read_text():
            self.path.write_text(f"import of {report.nodeid}")


class _CompileFast:
    """Keeps every compiled operation: almost all of them are the same for every mutant."""

    def pytest_configure(self):
        import jax

        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def copy_of_the_tree(folder: Path) -> None:
    """What the tests of the losses need, and nothing else."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in ("jaxagent/losses", "tests/losses", "tests/reference"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignore)
    for file in ("jaxagent/__init__.py", "tests/__init__.py", "tests/conftest.py"):
        shutil.copy(ROOT / file, folder / file)
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
    )


def warm_up() -> None:
    """Import what every child needs, without starting JAX's threads before the fork."""
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    os.environ["JAXAGENT_CACHE"] = str(ROOT / ".cache" / "jax-mutants")
    sys.dont_write_bytecode = True
    for name in ("jax.test_util", "jaxtyping", "beartype.door", "hypothesis.extra.numpy", "pytest"):
        importlib.import_module(name)


def fingerprint(source: str) -> str:
    """Changes with the code, not with its docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        if documented and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def judges(module: str) -> str:
    """Changes with the tests that judge a module."""
    files = [*TESTS.get(module, [f"test_{module}"]), "table", "test_table"]
    text = "".join((ROOT / "tests" / "losses" / f"{f}.py").read_text() for f in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Judge:
    """Judges mutants until the time is over, and remembers every verdict."""

    def __init__(self, folder: Path, seconds: float):
        self.folder, self.end = folder, time.monotonic() + seconds
        self.state = json.loads(STATE.read_text()) if STATE.exists() else {}

    def is_known(self, label: str, source: str, module: str) -> bool:
        """Whether there is a verdict: one that was caught stays caught when tests are added."""
        entry = self.state.get(label, {})
        if entry.get("source") != fingerprint(source):
            return False
        return bool(entry["failed"]) or entry["tests"] == judges(module)

    def judge(self, label: str, source: str, file: str) -> str | None:
        """The test that caught the mutant, "" for none; None where there was no time."""
        module = file.removesuffix(".py")
        if not self.is_known(label, source, module):
            if time.monotonic() > self.end:
                return None
            failed = verdict(source, file, self.folder)
            entry = {"source": fingerprint(source), "tests": judges(module), "failed": failed}
            self.state[label] = entry
            STATE.parent.mkdir(exist_ok=True)
            STATE.write_text(json.dumps(self.state, indent=0, ensure_ascii=False))
        return self.state[label]["failed"]


def run(files: list[str], seconds: float) -> dict[str, bool]:
    """The verdict on every mutant for which there was time; the unchanged code goes first."""
    found, waiting = {}, 0
    with tempfile.TemporaryDirectory() as name:
        copy_of_the_tree(Path(name))
        judge = Judge(Path(name), seconds)
        for file in files:
            failed = judge.judge(f"{file} unchanged", (LOSSES / file).read_text(), file)
            if failed:
                raise SystemExit(f"{failed} fails on the unchanged code of {file}")
            for label, source in mutants(LOSSES / file):
                failed = judge.judge(label, source, file)
                if failed is None:
                    waiting += 1
                else:
                    found[label] = bool(failed)
    if waiting:
        print(f"{waiting} mutants are still waiting: run again to go on")
    return found


def report(found: dict[str, bool]) -> int:
    """Print the share caught per file and the survivors; 1 where the bar is missed."""
    explained = EXPLAINED.read_text() if EXPLAINED.exists() else ""
    for file in sorted({label.split()[0] for label in found}):
        results = [caught for label, caught in found.items() if label.split()[0] == file]
        print(f"{file:20} {sum(results):4} of {len(results):4}")
    survivors = [label for label, caught in found.items() if not caught]
    for label in survivors:
        print("survivor" if label in explained else "UNEXPLAINED survivor", label)
    share = 1 - len(survivors) / max(len(found), 1)
    print(f"caught {len(found) - len(survivors)} of {len(found)}: {share:.1%}")
    return int(share < BAR or any(label not in explained for label in survivors))


def main() -> int:
    """Read the command line, check that the unchanged code passes, and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = sorted(p.name for p in LOSSES.glob("*.py") if p.name != "__init__.py")
    parser.add_argument("files", nargs="*", default=every, help="files of jaxagent/losses")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--list", action="store_true", help="only count the mutants")
    options = parser.parse_args()
    if options.list:
        for file in options.files:
            print(file, sum(1 for _ in mutants(LOSSES / file)))
        return 0
    warm_up()
    return report(run(options.files, options.seconds))


if __name__ == "__main__":
    sys.exit(main())
