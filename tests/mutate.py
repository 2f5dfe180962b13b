"""Mutation check: change one operator or name at a time, and see whether the tests notice.

    python -m tests.mutate [GROUP ...] [--file NAME.py] [--seconds 280] [--sample 40 --seed 0]

Groups: losses, agents, guidance, replay (with the rollout), text (the engine of the text world).
Every mutant lives in a copy of the tree in a temporary folder, and is tested in a child of one warm
process: forking costs far less than importing JAX again. Results are kept in
`.cache/mutants.json`, so that the work can be done in slices; a mutant whose source has not
changed since is not run again. Prints the share caught and the survivors, and fails where fewer
than 95 % are caught or a survivor is not explained in `tests/mutants.md`. With `--sample` that many
mutants are drawn from all of the groups, and the share comes with its interval.
"""

import argparse
import ast
import copy
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.mutation_groups import CALLS, GROUPS, NAMES, OPERATORS, PURE

ROOT = Path(__file__).parent.parent
STATE = ROOT / ".cache" / "mutants.json"
EXPLAINED = ROOT / "tests" / "mutants.md"
BAR = 0.95
LIMIT_SECONDS = 600  # of CPU, for all tests of one mutant; more is a loop without an end


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
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        for others in (CALLS, NAMES):
            if node.attr in others:
                yield _with(node, attr=others[node.attr])


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


class Mutant(NamedTuple):
    """One change of one file."""

    group: str
    module: str
    label: str
    source: str


def all_mutants(groups: list[str], module: str | None = None) -> list[Mutant]:
    """Every mutant of these groups, or of one module of theirs."""
    return [
        Mutant(group, name, label, source)
        for group in groups
        for name in GROUPS[group].tests
        if module in (None, name) and path_of(group, name).exists()
        for label, source in mutants(path_of(group, name))
    ]


def path_of(group: str, module: str) -> Path:
    """Where a module lies in the tree."""
    return ROOT / GROUPS[group].folder / f"{module}.py"


def arguments(group: str, module: str, folder: Path) -> list[list[str]]:
    """What pytest runs for a module, one call after the other.

    Its own tests; then, of a loss, the table's cases of its functions.
    """
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    options += ["-c", str(folder / "pyproject.toml")]
    calls = []
    for test in GROUPS[group].tests[module]:
        path, _, expression = test.partition("::")
        selected = ["-k", expression] if expression else []
        if (ROOT / "tests" / path).exists():
            calls.append([*options, str(folder / "tests" / path), *selected])
    if group == "losses":
        tree = ast.parse(path_of(group, module).read_text())
        names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.decorator_list]
        if names:
            table = str(folder / "tests" / "losses" / "test_table.py")
            calls.append([*options, table, "-k", " or ".join(names)])
    return calls


def verdict(mutant: Mutant, folder: Path) -> str:
    """What the tests say of a mutant: the first that fails, "" if all pass.

    One that uses up its seconds of CPU has a loop without an end, which is caught too. Where pytest
    ends in any other way, that is an error and not a mutant caught.
    """
    target = folder / path_of(mutant.group, mutant.module).relative_to(ROOT)
    original, failed = target.read_text(), folder / "failed"
    target.write_text(mutant.source)
    failed.write_text("")
    try:
        child = os.fork()
        if child == 0:
            _run_tests(arguments(mutant.group, mutant.module, folder), folder, failed)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        target.write_text(original)
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"more than {LIMIT_SECONDS} s of CPU"
    if status not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {status} on {mutant.label}, which says nothing")
    test = failed.read_text()
    if bool(status) != bool(test):
        raise SystemExit(f"pytest ended with {status} on {mutant.label}; failed: {test!r}")
    return test


def _run_tests(calls: list[list[str]], folder: Path, failed: Path) -> None:
    """In the child: run the tests in silence, note which failed, and end with their status."""
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS + 5))
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(folder)
    sys.path[:0] = [str(folder)]
    import pytest

    status = 0
    for chosen in calls:
        status = int(pytest.main(chosen, plugins=[_CompileFast(), _NoteFailure(failed)]))
        if status:
            break
    os._exit(status)


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
    """What the tests of any group need."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for part in ("jaxagent", "envs", "experiments", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignore)
    (folder / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = "--import-mode=importlib"\n'
        'markers = ["slow", "gpu", "alfworld", "parity"]\n'
    )


def warm_up() -> None:
    """Import what every child needs, without starting JAX's threads before the fork.

    Flax and optax are not among it: they make arrays when they are imported, and a child of a
    process that has JAX's threads waits for them for ever.
    """
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    os.environ["JAXAGENT_CACHE"] = str(ROOT / ".cache" / "jax-mutants")
    sys.dont_write_bytecode = True
    for name in PURE:
        importlib.import_module(name)


def fingerprint(source: str) -> str:
    """Changes with the code, not with its docstrings and comments."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        documented = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module)
        if documented and ast.get_docstring(node):
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def judges(group: str, module: str) -> str:
    """Changes with the tests that judge a module."""
    files = [test.partition("::")[0] for test in GROUPS[group].tests[module]]
    files += ["losses/table.py", "losses/test_table.py"] if group == "losses" else []
    paths = [ROOT / "tests" / file for file in files]
    text = "".join(path.read_text() for path in paths if path.exists())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Judge:
    """Judges mutants and remembers every verdict."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.state = json.loads(STATE.read_text()) if STATE.exists() else {}

    def is_known(self, mutant: Mutant) -> bool:
        """Whether there is a verdict: one that was caught stays caught when tests are added."""
        entry = self.state.get(_name(mutant), {})
        if entry.get("source") != fingerprint(mutant.source):
            return False
        return bool(entry["failed"]) or entry["tests"] == judges(mutant.group, mutant.module)

    def judge(self, mutant: Mutant) -> str:
        """The test that caught the mutant, "" for none."""
        if not self.is_known(mutant):
            self.state[_name(mutant)] = {
                "source": fingerprint(mutant.source),
                "tests": judges(mutant.group, mutant.module),
                "failed": verdict(mutant, self.folder),
            }
            STATE.parent.mkdir(exist_ok=True)
            STATE.write_text(json.dumps(self.state, indent=0, ensure_ascii=False))
        return self.state[_name(mutant)]["failed"]


def _name(mutant: Mutant) -> str:
    return f"{mutant.group} {mutant.label}"


def run(chosen: list[Mutant], seconds: float) -> dict[str, bool]:
    """The verdict on every mutant for which there was time, and always on the first one.

    The unchanged code of a module is judged before its mutants. With no time left, a mutant that
    was judged before is still reported.
    """
    found, waiting, end = {}, 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as name:
        copy_of_the_tree(Path(name))
        judge = Judge(Path(name))
        for mutant in chosen:
            if found and time.monotonic() > end and not judge.is_known(mutant):
                waiting += 1
                continue
            original = path_of(mutant.group, mutant.module).read_text()
            unchanged = mutant._replace(label=f"{mutant.module}.py unchanged", source=original)
            failed = judge.judge(unchanged)
            if failed:
                raise SystemExit(f"{failed} fails on the unchanged code of {mutant.module}.py")
            failed = judge.judge(mutant)
            found[_name(mutant)] = bool(failed)
            print("caught  " if failed else "survivor", _name(mutant), failed, flush=True)
    if waiting:
        print(f"{waiting} mutants are still waiting: run again to go on")
    return found


def report(found: dict[str, bool], total: int) -> int:
    """Print the share caught per file and the survivors; 1 where the bar is missed."""
    explained = EXPLAINED.read_text() if EXPLAINED.exists() else ""
    for file in sorted({" ".join(name.split()[:2]) for name in found}):
        results = [caught for name, caught in found.items() if name.startswith(f"{file} ")]
        print(f"{file:32} {sum(results):4} of {len(results):4}")
    survivors = [name for name, caught in found.items() if not caught]
    unexplained = [name for name in survivors if name.partition(" ")[2] not in explained]
    for name in survivors:
        print("UNEXPLAINED survivor" if name in unexplained else "survivor", name)
    caught, count = len(found) - len(survivors), max(len(found), 1)
    low, high = wilson(caught, count)
    print(
        f"caught {caught} of {len(found)}, drawn from {total}: {caught / count:.1%}"
        + (f", 95 % interval {low:.1%} to {high:.1%}" if len(found) < total else "")
    )
    return int(caught / count < BAR or bool(unexplained))


def wilson(successes: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    share, scale = successes / count, 1 + z**2 / count
    centre = (share + z**2 / (2 * count)) / scale
    half = z / scale * (share * (1 - share) / count + z**2 / (4 * count**2)) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


def main() -> int:
    """Read the command line, check that the unchanged code passes, and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", nargs="*", default=list(GROUPS), help=", ".join(GROUPS))
    parser.add_argument("--file", help="only this module of the groups, for example ppo.py")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this long")
    parser.add_argument("--sample", type=int, help="judge so many, drawn from all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--list", action="store_true", help="only count the mutants")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"group ({', '.join(sorted(unknown))}) must be one of {', '.join(GROUPS)}")
    module = options.file and options.file.removesuffix(".py")
    chosen = all_mutants(options.groups, module)
    total = len(chosen)
    if options.sample:
        random.Random(options.seed).shuffle(chosen)
        chosen = chosen[: options.sample]
    if options.list:
        for file in sorted({(m.group, m.module) for m in chosen}):
            print(*file, sum((m.group, m.module) == file for m in chosen))
        return 0
    warm_up()
    return report(run(chosen, options.seconds), total)


if __name__ == "__main__":
    sys.exit(main())
