"""Games that the tests share."""

import json
import lzma
from pathlib import Path

import pytest

from envs.household.generator import GeneratedGame, generate_games

REAL_DATA = Path(__file__).resolve().parents[3] / "shared" / "alfworld"


@pytest.fixture(scope="session")
def generated() -> list[GeneratedGame]:
    """Twenty-four generated games, four of each type, chosen by no expert."""
    return list(generate_games(24, 5, won_by_search=False))


def real_lines(name: str) -> list[dict]:
    """Records of the benchmark's own games, where they are at hand; skips the test otherwise."""
    path = REAL_DATA / name
    if not path.is_file():
        pytest.skip(f"the benchmark's games are not at hand ({name})")
    with lzma.open(path, "rt") as file:
        return [json.loads(line) for line in file]
