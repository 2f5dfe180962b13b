"""Safetensors files, read by memory map and written a tensor at a time."""

import json
import operator
import struct
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


class StoredTensor(NamedTuple):
    """A tensor that lies in a file until `read` is called."""

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def open_safetensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder that holds `model.safetensors`, or an index and its shards.

    Where there are both, the single file counts, as for transformers, and a warning says so.
    Nothing but headers is read. `read` maps one tensor's bytes; when the caller drops that array
    the pages go too, so that what is resident never adds up to the whole file.

    Raises:
        ValueError: no such file, a shard that is missing, a broken header, a dtype that holds no
            weights; named in the message.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if single.is_file():
        if index.is_file():
            warnings.warn(
                f"{folder} holds {single.name} and {index.name}: {single.name} is read, as "
                "transformers does; remove the one that is old",
                stacklevel=2,
            )
        files = [single]
    elif index.is_file():
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(
                f"{index}: weight_map ({weight_map!r}) must be an object of file names"
            )
        for name, value in weight_map.items():
            if not isinstance(value, str):
                raise ValueError(
                    f"{index}: weight_map of {name!r} ({value!r}) must be a file's name"
                )
        files = sorted({folder / name for name in weight_map.values()})
    else:
        raise ValueError(f"{folder} has neither model.safetensors nor model.safetensors.index.json")
    stored: dict[str, StoredTensor] = {}
    for file in files:
        stored.update(open_safetensors_file(file))
    return stored


def open_safetensors_file(file: Path) -> dict[str, StoredTensor]:
    """Every tensor of one file, by name; only the header is read."""
    header, data = _header(file)
    size = file.stat().st_size
    stored: dict[str, StoredTensor] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        dtype, shape, begin, end = _entry(file, name, entry)
        if begin < 0 or end - begin != dtype.itemsize * int(np.prod(shape)) or data + end > size:
            raise ValueError(f"{file}: tensor {name!r} does not lie inside the file (truncated?)")
        stored[name] = StoredTensor(shape, _mapped(file, dtype, shape, data + begin))
    return stored


def read_json_object(file: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
        ValueError: it is missing, no JSON, or no object; the file is named.
    """
    try:
        value = json.loads(file.read_text())
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{file} must hold a JSON object, found a {type(value).__name__}")
    return value


def _entry(file: Path, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of a header's entry."""
    try:
        code, shape = entry["dtype"], tuple(map(operator.index, entry["shape"]))
        begin, end = map(operator.index, entry["data_offsets"])
    except (TypeError, KeyError, ValueError):
        raise ValueError(
            f"{file}: the header's entry of {name!r} must have dtype, shape and data_offsets"
        ) from None
    if not isinstance(code, str) or code not in DTYPES:
        raise ValueError(f"{file}: tensor {name!r} has unsupported dtype {code!r}")
    return DTYPES[code], shape, begin, end


def _header(file: Path) -> tuple[dict, int]:
    """(entries, offset of the data)."""
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > file.stat().st_size:
                raise ValueError("header longer than the file")
            header = json.loads(stream.read(length))
            if not isinstance(header, dict):
                raise ValueError("the header must be a JSON object")
            return header, 8 + length
    except FileNotFoundError:
        raise ValueError(f"{file} is missing") from None
    except (struct.error, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not a safetensors file: {error}") from None


def _mapped(
    file: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int
) -> Callable[[], np.ndarray]:
    return lambda: np.memmap(file, dtype=dtype, mode="r", offset=offset, shape=shape)


class TensorSpec(NamedTuple):
    """A tensor about to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype


def write_safetensors(
    file: Path,
    specs: Iterable[TensorSpec],
    read: Callable[[str], np.ndarray],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the tensors in order, `read` called for each when its turn comes.

    So at most one tensor is in memory beside the parameters. The format's `metadata` defaults to
    the one that PyTorch's loaders expect.
    """
    header: dict[str, dict] = {"__metadata__": dict(metadata or {"format": "pt"})}
    offset = 0
    for spec in specs:
        size = spec.dtype.itemsize * int(np.prod(spec.shape))
        header[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for name in list(header)[1:]:
            stream.write(np.ascontiguousarray(read(name)).reshape(-1).view(np.uint8).data)
