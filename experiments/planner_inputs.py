"""What a run of `experiments.alfworld_planner` depends on beside its options."""

import pathlib

from envs.household.world import HOUSEHOLD
from experiments.alfworld_data import Split
from experiments.planner_config import PlannerConfig
from jaxagent.planning.planner_files import planner_folder
from jaxagent.training.inputs import Source, Written, read_inputs


def input_sources(config: PlannerConfig, split: Split) -> dict[str, Source]:
    """The files and folders that a run of this configuration depends on, by option.

    The games themselves stay where they are; their names and sizes are kept.
    """
    sources: dict[str, Source] = {}
    if config.preset.startswith("hf:"):
        sources["preset"] = pathlib.Path(config.preset.removeprefix("hf:"))
    if config.initial is not None:
        sources["initial"] = planner_folder(config.initial, HOUSEHOLD)
    if config.demonstrations is not None:
        sources["demonstrations"] = pathlib.Path(config.demonstrations)
    names = _names(split)
    sources["games"] = Written(".txt", lambda path: path.write_text(names, encoding="utf-8"))
    return sources


def check_games(folder: pathlib.Path, split: Split) -> None:
    """Refuse to go on with other games of the benchmark than a run was begun with.

    Raises:
        ValueError: they are others.
    """
    kept = read_inputs(folder, ("games",))
    if not kept:
        return
    before, now = (
        set(t.splitlines()) for t in (pathlib.Path(kept["games"]).read_text(), _names(split))
    )
    if before != now:
        other = min(before ^ now)
        raise ValueError(
            f"data: {folder} was begun with {len(before)} games of the benchmark, found "
            f"{len(now)}; {other} is {'missing' if other in before else 'new'}: see --data and "
            "ALFWORLD_DATA"
        )


def _names(split: Split) -> str:
    """A line for each game: its folders and its size."""
    paths = sorted(path for part in split for path in part)
    return "".join(f"{'/'.join(p.parts[-3:-1])} {p.stat().st_size}\n" for p in paths)
