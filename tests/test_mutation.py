"""A sample of the mutation check: the tests of losses and replay notice what is changed in them."""

import os
import subprocess
import sys
from pathlib import Path

from tests import mutate

ROOT = Path(__file__).parent.parent


def test_a_sample_of_mutants_is_caught_or_explained():
    """The same sample each time; the first is always judged, after 45 s no other is begun."""
    chosen = ["losses", "replay", "--sample", "4", "--seed", "16", "--seconds", "45"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutate", *chosen],
        cwd=ROOT, capture_output=True, text=True, timeout=540,
        env={k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
    )  # fmt: skip
    assert "UNEXPLAINED" not in done.stdout, done.stdout
    assert "caught  " in done.stdout, done.stdout + done.stderr  # of one mutant at least


def test_the_wiring_of_names_is_mutated_too():
    labels = {mutant.label for mutant in mutate.all_mutants(["agents"], "sac_her")}
    assert (
        "sac_her.py _critic_loss: `state.target_critic_params` -> `state.critic_params`" in labels
    )
    assert "sac_her.py update: `batch.next_observation` -> `batch.observation`" in labels


def test_every_survivor_that_is_explained_is_still_a_mutant():
    """An explanation of what is no longer there is stale."""
    told = mutate.EXPLAINED.read_text()
    labels = [m.label for m in mutate.all_mutants(list(mutate.GROUPS)) if m.label in told]
    entries = [line for line in told.splitlines() if line.startswith("- ")]
    assert len(labels) >= len(entries)


def test_a_share_comes_with_the_interval_of_wilson():
    low, high = mutate.wilson(38, 40)
    assert (round(low, 3), round(high, 3)) == (0.835, 0.986)
