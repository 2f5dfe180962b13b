"""Planners in folders: parameters with all it takes to write for them and to read them."""

import dataclasses
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.tensor_files import TensorSpec, open_safetensors, write_safetensors
from jaxagent.models.llm.weights import flatten, unflatten
from jaxagent.models.llm.words import WordTokenizer, with_embedding
from jaxagent.planning.household_format import FORMATS, HouseholdFormat
from jaxagent.planning.household_player import PlannerModel

FORMAT = "jaxagent.planner.1"
DESCRIPTION_FILE = "planner.json"
PACKAGED = ("tiny", "tiny-hierarchical")


class Planner(NamedTuple):
    """A planner as it learns; ``made`` tells how it came about."""

    config: LlamaConfig
    params: Mapping[str, Any]
    tokenizer: WordTokenizer
    style: HouseholdFormat
    made: Mapping[str, Any]

    def playing(self) -> PlannerModel:
        """The same, ready to play."""
        factors = self.tokenizer.factors if self.tokenizer.kinds else None
        params = with_embedding(self.params, factors)
        return PlannerModel(self.config, params, self.tokenizer, self.style)


def save_planner(folder: Path, planner: Planner) -> None:
    """Write a folder that `load_planner` reads: planner.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {
        ".".join(path): np.asarray(x) for path, x in flatten(jax.device_get(planner.params)).items()
    }
    specs = [TensorSpec(name, x.shape, x.dtype) for name, x in sorted(arrays.items())]
    unfinished = folder / "model.safetensors.part"
    write_safetensors(unfinished, specs, arrays.__getitem__)
    unfinished.replace(folder / "model.safetensors")
    description = {
        "format": FORMAT,
        "style": planner.style.name,
        "style_version": planner.style.version,
        "model": dataclasses.asdict(planner.config),
        "tokenizer": planner.tokenizer.to_dict(),
        "made": dict(planner.made),
    }
    text = json.dumps(description, indent=1)
    (folder / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")


def load_planner(source: str | Path) -> Planner:
    """A planner that comes with the package, or one from a folder.

    Args:
        source: a name of `PACKAGED`, or a folder that `save_planner` wrote.

    Returns:
        The planner, its parameters on the default device.

    Raises:
        ValueError: there is no such planner, it is of another format, or its tensors are not
            those that its description asks for.
    """
    if source in PACKAGED:
        folder = Path(str(files("jaxagent.planning") / "trained" / str(source)))
    else:
        folder = Path(source)
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        known = ", ".join(PACKAGED)
        raise ValueError(f"unknown planner {str(source)!r}: neither {known} nor a planner's folder")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    style = _style(path, description)
    config = LlamaConfig(**description["model"])
    tokenizer = WordTokenizer.from_dict(description["tokenizer"])
    params = _read(folder, config, tokenizer)
    return Planner(config, params, tokenizer, style, description["made"])


def _style(path: Path, description: Mapping[str, Any]) -> HouseholdFormat:
    if description.get("format") != FORMAT:
        raise ValueError(f"{path}: format {description.get('format')!r} is not {FORMAT!r}")
    name, version = description["style"], description["style_version"]
    style = FORMATS.get(name)
    if style is None or style.version != version:
        ours = ", ".join(f"{known} {made.version}" for known, made in FORMATS.items())
        raise ValueError(f"{path}: trained on text format {name} {version}; known: {ours}")
    return style


def _read(folder: Path, config: LlamaConfig, tokenizer: WordTokenizer) -> dict[str, Any]:
    params = unflatten(
        {
            tuple(name.split(".")): jnp.asarray(np.array(tensor.read()))
            for name, tensor in open_safetensors(folder).items()
        }
    )
    missing = {"layers", "final_norm"} - params.keys()
    table = ("stem", "number") if tokenizer.kinds else ("embedding",)
    missing |= set(table) - params.keys()
    if missing:
        raise ValueError(f"{folder}: tensors of {', '.join(sorted(missing))} are missing")
    rows = {"stem": int(tokenizer.factors.stem.max()) + 1,
            "number": int(tokenizer.factors.number.max()) + 1,
            "embedding": tokenizer.vocab_size}  # fmt: skip
    for name in table:
        wanted = (rows[name], config.hidden_size)
        if params[name].shape != wanted:
            raise ValueError(
                f"{folder}: {name} is {params[name].shape}, the tokeniser needs {wanted}"
            )
    return params
