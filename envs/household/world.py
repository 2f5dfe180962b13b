"""The household games as a text world."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from envs.household.format import FORMATS
from jaxagent.text import TextFormat

_TRAINED = Path(str(files("envs.household"))) / "trained"


class HouseholdWorld:
    """ALFWorld's games, those of the benchmark and generated ones; see `TextWorld`."""

    name = "household"
    formats: Mapping[str, TextFormat] = FORMATS
    planners: Mapping[str, Path] = {name: _TRAINED / name for name in ("tiny", "tiny-hierarchical")}


HOUSEHOLD = HouseholdWorld()
