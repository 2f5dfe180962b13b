"""The house itself: what may import what, and that the losses stand alone."""

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
