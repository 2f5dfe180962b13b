"""Planners in folders: parameters with all it takes to write for them and to read them.

A planner with a tokeniser of words is `planner.json` and its tensors. One that a language model
became is a Hugging Face folder, which transformers reads as well, with a `planner.json` in it.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from beartype.door import is_bearable

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.load import LanguageModel, load_folder, save_model
from jaxagent.models.llm.saved_files import WEIGHT_FILES, replaced_files
from jaxagent.models.llm.tensor_files import TensorSpec, open_safetensors, write_safetensors
from jaxagent.models.llm.weights import abstract_params, flatten, unflatten
from jaxagent.models.llm.words import FORMAT as WORDS_FORMAT
from jaxagent.models.llm.words import SubwordTokenizer, WordTokenizer, with_embedding
from jaxagent.planning.household_player import PlannerModel
from jaxagent.text import TextFormat, TextWorld

FORMAT = "jaxagent.planner.1"
DESCRIPTION_FILE = "planner.json"


class Planner(NamedTuple):
    """A planner as it learns.

    Attributes:
        config: of the decoder.
        params: with LoRA, merged.
        tokenizer: of words, or the one that came with a language model.
        style: how episodes are written.
        made: how it came about.
        context: tokens of an episode that it was trained on and remembers; None is all that the
            model has positions for.
    """

    config: LlamaConfig
    params: Mapping[str, Any]
    tokenizer: WordTokenizer | SubwordTokenizer
    style: TextFormat
    made: Mapping[str, Any]
    context: int | None = None

    def playing(self) -> PlannerModel:
        """The same, ready to play."""
        config, tokenizer = self.config, self.tokenizer
        if self.context is not None:
            # A limit and no more: how positions are rotated does not depend on it.
            config = dataclasses.replace(config, max_positions=self.context)
        is_factored = isinstance(tokenizer, WordTokenizer) and tokenizer.kinds
        params = with_embedding(self.params, tokenizer.factors if is_factored else None)  # type: ignore[union-attr]
        return PlannerModel(config, params, tokenizer, self.style)


def save_planner(folder: Path, planner: Planner) -> None:
    """Write a folder that `load_planner` reads: planner.json and the tensors.

    With the tokeniser of a language model it is a Hugging Face folder, too. planner.json, without
    which nothing is loaded, is removed first and written last.
    """
    description: dict[str, Any] = {
        "format": FORMAT,
        "style": planner.style.name,
        "style_version": planner.style.version,
    }
    replaced: Sequence[str] = ()
    if isinstance(planner.tokenizer, SubwordTokenizer):
        # The type of the tensors, not that of the layers, is what a Hugging Face folder tells.
        kept = dataclasses.replace(planner.config, dtype=str(planner.params["embedding"].dtype))
        plain = planner.tokenizer.tokenizer
        (folder / DESCRIPTION_FILE).unlink(missing_ok=True)
        ends = planner.tokenizer.end_tokens
        save_model(folder, LanguageModel(kept, planner.params, plain, folder.name, ends))
        context = planner.context or planner.config.max_positions
        description |= {"context": context, "dtype": planner.config.dtype}
    else:
        replaced = WEIGHT_FILES
        model = dataclasses.asdict(planner.config)
        description |= {"model": model, "tokenizer": planner.tokenizer.to_dict()}
    text = json.dumps({**description, "made": dict(planner.made)}, indent=1)
    with replaced_files(folder, last=DESCRIPTION_FILE, replaced=replaced) as made:
        if replaced:
            _write_params(made, planner.params)
        (made / DESCRIPTION_FILE).write_text(text + "\n", encoding="utf-8")


def _write_params(folder: Path, params: Mapping[str, Any]) -> None:
    arrays = {".".join(path): np.asarray(x) for path, x in flatten(jax.device_get(params)).items()}
    specs = [TensorSpec(name, x.shape, x.dtype) for name, x in sorted(arrays.items())]
    write_safetensors(folder / "model.safetensors", specs, arrays.__getitem__)


def planner_folder(source: str | Path, world: TextWorld) -> Path:
    """Where a planner lies, or would lie; arguments are as of `load_planner`."""
    return world.planners.get(str(source), Path(source))


def load_planner(source: str | Path, world: TextWorld) -> Planner:
    """A planner that comes with the package, or one from a folder.

    Args:
        source: a planner that comes with the world, or a folder that `save_planner` wrote, of
            either kind.
        world: whose games it plays; its formats are known.

    Returns:
        The planner, its parameters on the default device.

    Raises:
        ValueError: there is no such planner, it is of another format, or its tensors are not
            those that its description asks for; the file and the field or tensor are named.
    """
    folder = planner_folder(source, world)
    path = folder / DESCRIPTION_FILE
    if not path.is_file():
        known = ", ".join(world.planners)
        raise ValueError(f"unknown planner {str(source)!r}: neither {known} nor a planner's folder")
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(description, dict):
        raise ValueError(f"{path} must hold a mapping, found {_shown(description)}")
    style = _style(path, description, world)
    if "context" in description:
        return _language_model(path, description, style)
    config = _config(path, _mapping(path, description, "model"))
    tokenizer = _tokenizer(path, _mapping(path, description, "tokenizer"))
    made = _mapping(path, description, "made")
    if config.vocab_size != tokenizer.vocab_size:
        raise ValueError(
            f"{path}: vocab_size of model is {config.vocab_size}, tokenizer has "
            f"{tokenizer.vocab_size} tokens"
        )
    return Planner(config, _read(folder, config, tokenizer), tokenizer, style, made)


def _language_model(path: Path, description: Mapping[str, Any], style: TextFormat) -> Planner:
    """A planner that a language model became; it computes in the type that it was trained in."""
    context, dtype = (_given(path, description, name) for name in ("context", "dtype"))
    model = load_folder(path.parent)
    most = model.config.max_positions
    if type(context) is not int or not 1 <= context <= most:
        raise ValueError(f"{path}: context ({_shown(context)}) must lie in [1, {most}]")
    try:
        config = dataclasses.replace(model.config, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    tokenizer = SubwordTokenizer(model.tokenizer, config.vocab_size, model.end_tokens)
    made = _mapping(path, description, "made")
    return Planner(config, model.params, tokenizer, style, made, context)


def _style(path: Path, description: Mapping[str, Any], world: TextWorld) -> TextFormat:
    if description.get("format") != FORMAT:
        raise ValueError(f"{path}: format {description.get('format')!r} is not {FORMAT!r}")
    name, version = (_given(path, description, n) for n in ("style", "style_version"))
    style = world.formats.get(name) if isinstance(name, str) else None
    if style is None or style.version != version:
        ours = ", ".join(f"{known} {made.version}" for known, made in world.formats.items())
        raise ValueError(f"{path}: trained on text format {name} {version}; known: {ours}")
    return style


def _mapping(path: Path, description: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = _given(path, description, name)
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {name} must be a mapping, found {_shown(value)}")
    return value


def _given(path: Path, fields: Mapping[str, Any], name: str, of: str = "") -> Any:
    if name not in fields:
        raise ValueError(f"{path}: {of}lacks {name!r}")
    return fields[name]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _config(path: Path, model: Mapping[str, Any]) -> LlamaConfig:
    hints = typing.get_type_hints(LlamaConfig)
    if unknown := sorted(model.keys() - hints.keys()):
        raise ValueError(f"{path}: model has an unknown field {unknown[0]!r}")
    values = dict(model)
    for field in dataclasses.fields(LlamaConfig):
        if field.name not in values:
            if field.default is dataclasses.MISSING:
                raise ValueError(f"{path}: model lacks {field.name!r}")
            continue
        value, hint = values[field.name], hints[field.name]
        if hint is float and isinstance(value, int) and not isinstance(value, bool):
            values[field.name] = value = float(value)
        # Planners are trained without stretched frequencies: None is all that is written.
        if not is_bearable(value, hint):
            raise ValueError(f"{path}: model's {field.name} is of the wrong type: {_shown(value)}")
    try:
        return LlamaConfig(**values)
    except ValueError as error:
        raise ValueError(f"{path}: model: {error}") from None


def _tokenizer(path: Path, data: Mapping[str, Any]) -> WordTokenizer:
    try:
        # An older format may have other fields: it is to be named before they are missed.
        if data.get("format") == WORDS_FORMAT:
            words, kinds = (_given(path, data, name, "tokenizer ") for name in ("words", "kinds"))
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError("words must be a list of texts")
            if not isinstance(kinds, dict) or not all(type(n) is int for n in kinds.values()):
                raise ValueError("kinds must be a mapping of names to whole numbers")
        return WordTokenizer.from_dict(data)
    except ValueError as error:
        raise ValueError(error if str(path) in str(error) else f"{path}: {error}") from None


def _read(folder: Path, config: LlamaConfig, tokenizer: WordTokenizer) -> dict[str, Any]:
    """The tensors, which must be those of the model, no fewer and no more."""
    wanted = {".".join(path): leaf.shape for path, leaf in abstract_params(config).items()}
    if tokenizer.kinds:  # an embedding in two factors, see `with_embedding`
        del wanted["embedding"]
        for name, rows in tokenizer.factors._asdict().items():
            wanted[name] = (int(rows.max()) + 1, config.hidden_size)
    file = folder / "model.safetensors"
    stored = open_safetensors(folder)
    if missing := sorted(wanted.keys() - stored.keys()):
        raise ValueError(f"{file} lacks the tensor {_some(missing)}")
    if surplus := sorted(stored.keys() - wanted.keys()):
        raise ValueError(f"{file} holds {_some(surplus)}, which the model does not have")
    for name, shape in wanted.items():
        if stored[name].shape != shape:
            raise ValueError(
                f"{file}: {name} has shape {list(stored[name].shape)}, {DESCRIPTION_FILE} says "
                f"{list(shape)}"
            )
    arrays = {name: np.array(tensor.read()) for name, tensor in stored.items()}
    for name, array in arrays.items():
        if not np.isfinite(array.astype(np.float32)).all():
            raise ValueError(f"{file}: {name} holds numbers that are not finite")
    return unflatten({tuple(name.split(".")): jnp.asarray(x) for name, x in arrays.items()})


def _some(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]
