"""GGUF files: metadata by a reader of our own, de-quantisation by the `gguf` package.

The package's reader wraps every element of every metadata array, which takes seconds for a
vocabulary; the format itself is a header that one pass reads.
"""

import dataclasses
import math
import mmap
import re
import struct
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from jaxagent.models.llm.config import LlamaConfig, RopeScaling
from jaxagent.models.llm.rope import inverse_frequencies
from jaxagent.models.llm.tensor_files import StoredTensor

_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}  # as struct has them
_STRING, _ARRAY = 8, 9

_LAYER_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_ROPE_FREQUENCIES = "rope_freqs.weight"
_MOST_VALUES = 1 << 48
# Fields of other models of the same name, which change what is computed.
_NOT_COMPUTED = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "embedding_scale",
    "residual_scale",
    "use_parallel_residual",
    "rope.scaling.yarn_log_multiplier",
)


class GGUF(NamedTuple):
    """A GGUF file's header: what it says of itself, and where its tensors lie."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int, int]]  # shape, quantisation type, offset


def open_gguf(path: Path) -> GGUF:
    """Read the header.

    Raises:
        ValueError: not a GGUF file of version 2 or 3, or one that is cut short.
    """
    with path.open("rb") as stream:
        if path.stat().st_size < 24:
            raise ValueError(f"{path} is not a GGUF file: {path.stat().st_size} bytes")
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            if view[:4] != b"GGUF":
                raise ValueError(f"{path} is not a GGUF file: it begins with {view[:4]!r}")
            try:
                return _parse(path, view)
            except (
                struct.error,
                IndexError,
                UnicodeDecodeError,
                OverflowError,
                MemoryError,
                RecursionError,
            ) as error:
                raise ValueError(f"{path}: broken or truncated GGUF header: {error}") from None


def _parse(path: Path, view: mmap.mmap) -> GGUF:
    cursor = _Cursor(view, 4)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise ValueError(f"{path}: GGUF version {version} is not supported; supported: 2, 3")
    tensor_count, entry_count = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {cursor.string(): cursor.value(cursor.scalar("I")) for _ in range(entry_count)}
    infos = []
    for _ in range(tensor_count):
        name = cursor.string()
        dimensions = cursor.scalar("I")
        if not 1 <= dimensions <= 4:
            raise ValueError(f"{path}: tensor {name!r:.60} has {dimensions} dimensions, not 1 to 4")
        shape = tuple(cursor.scalar("Q") for _ in range(dimensions))
        infos.append((name, shape[::-1], cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1:
        raise ValueError(
            f"{path}: general.alignment ({alignment!r:.60}) must be a whole number of at least 1"
        )
    data = -(-cursor.offset // alignment) * alignment
    return GGUF(path, metadata, {n: (shape, kind, data + at) for n, shape, kind, at in infos})


class _Cursor:
    """A place in the header that moves on as values are read."""

    def __init__(self, view: mmap.mmap, offset: int):
        self.view, self.offset = view, offset

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.view, self.offset)
        self.offset += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        start, self.offset = self.offset, self.offset + length
        if self.offset > len(self.view):
            raise IndexError(f"a string of {length} bytes ends behind the file")
        return self.view[start : self.offset].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise IndexError(f"unknown metadata type {kind}")
            return self.scalar(_SCALARS[kind])
        element, count = self.scalar("I"), self.scalar("Q")
        if element in _SCALARS:
            values = struct.unpack_from(f"<{count}{_SCALARS[element]}", self.view, self.offset)
            self.offset += struct.calcsize(f"<{count}{_SCALARS[element]}")
            return list(values)
        return [self.value(element) for _ in range(count)]


class _Fields:
    """The metadata of one architecture; what is asked for is checked."""

    def __init__(self, file: GGUF, architecture: str):
        self._file, self._architecture = file, architecture
        prefix = f"{architecture}."
        self.values = {k.removeprefix(prefix): v for k, v in file.metadata.items()}

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self._value(name, default)
        if type(value) is not int or value < 1:
            self._refuse(name, "must be a whole number of at least 1")
        return value

    def positive(self, name: str, default: float | None = None) -> float:
        """A positive, finite number."""
        value = self._value(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            self._refuse(name, "must be a positive number")
        return float(value)

    def refuse_not_computed(self) -> None:
        """Fields that change the result and that the model does not compute."""
        for name in _NOT_COMPUTED:
            if self.values.get(name):
                self._refuse(name, "is not supported")

    def _value(self, name: str, default: Any) -> Any:
        if default is None and name not in self.values:
            raise ValueError(f"{self._file.path}: metadata lacks {self._architecture}.{name}")
        return self.values.get(name, default)

    def _refuse(self, name: str, rule: str) -> NoReturn:
        raise ValueError(
            f"{self._file.path}: {self._architecture}.{name} ({self.values.get(name)!r:.60}) {rule}"
        )


def config_from_gguf(file: GGUF) -> LlamaConfig:
    """The configuration that the metadata describes.

    Raises:
        ValueError: an architecture or rotary scaling that is not supported, a missing field.
    """
    architecture = file.metadata.get("general.architecture")
    if architecture not in ("llama", "qwen2", "qwen3"):
        raise ValueError(
            f"{file.path}: architecture {architecture!r} is not supported; "
            "supported: llama, qwen2, qwen3"
        )
    fields = _Fields(file, architecture)
    fields.refuse_not_computed()
    heads, hidden = fields.whole("attention.head_count"), fields.whole("embedding_length")
    most, scaling = fields.whole("context_length"), _scaling(file, fields.values)
    described = {
        "model_type": architecture,
        "vocab_size": _shape(file, "token_embd.weight")[0],
        "hidden_size": hidden,
        "intermediate_size": fields.whole("feed_forward_length"),
        "num_layers": fields.whole("block_count"),
        "num_heads": heads,
        "num_kv_heads": fields.whole("attention.head_count_kv", heads),
        "head_dim": fields.whole("attention.key_length", max(hidden // heads, 1)),
        "max_positions": most if scaling is None else scaling.stretched(most),
        "rope_theta": fields.positive("rope.freq_base", 10_000.0),
        "rope_scaling": scaling,
        "norm_epsilon": float(
            f"{fields.positive('attention.layer_norm_rms_epsilon'):.6g}"
        ),  # was float32
        "qkv_bias": "blk.0.attn_q.bias" in file.tensors,
        "output_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        "qk_norm": "blk.0.attn_q_norm.weight" in file.tensors,
        "tie_embeddings": "output.weight" not in file.tensors,
    }
    described["head_dim"] = _head_dim(file, fields.values, described["head_dim"])
    try:
        config = LlamaConfig(**described)
    except ValueError as error:
        raise ValueError(f"{file.path}: {error}") from None
    return _with_llama3_scaling(file, config)


def _head_dim(file: GGUF, fields: dict[str, Any], size: int) -> int:
    """The size, where all that else is said of a head agrees with it."""
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.get(name, size) != size:
            raise ValueError(
                f"{file.path}: {name} ({fields[name]!r:.60}) must be the size of a head ({size})"
            )
    window, length = fields.get("attention.sliding_window"), fields.get("context_length")
    if window and (type(window) is not int or type(length) is not int or window < length):
        raise ValueError(
            f"{file.path}: attention.sliding_window ({window!r:.60}) below the context is not "
            "supported"
        )
    return size


def _shape(file: GGUF, name: str) -> tuple[int, ...]:
    if name not in file.tensors:
        raise ValueError(f"{file.path} lacks tensor {name}")
    return file.tensors[name][0]


def _scaling(file: GGUF, fields: dict[str, Any]) -> RopeScaling | None:
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(
            f"{file.path}: rope scaling {kind!r} is not supported; supported: linear, yarn"
        )
    return RopeScaling(
        kind=kind,
        factor=_scaling_factor(file, fields),
        original_max_positions=_original_length(file, fields),
    )


def _original_length(file: GGUF, fields: dict[str, Any]) -> int:
    name = "rope.scaling.original_context_length"
    length = fields.get(name, fields.get("context_length"))
    if type(length) is not int or length < 1:
        raise ValueError(
            f"{file.path}: {name} ({length!r:.60}) must be a whole number of at least 1"
        )
    return length


def _scaling_factor(file: GGUF, fields: dict[str, Any]) -> float:
    factor = fields.get("rope.scaling.factor")
    if not isinstance(factor, int | float) or not 0 < factor < float("inf"):
        raise ValueError(f"{file.path}: rope.scaling.factor ({factor!r}) must be a positive number")
    return float(factor)


def _with_llama3_scaling(file: GGUF, config: LlamaConfig) -> LlamaConfig:
    """Llama 3.1 and later store only the divisors of the frequencies: find what they came from."""
    if _ROPE_FREQUENCIES not in file.tensors:
        return config
    divisors = _dequantised(file, _ROPE_FREQUENCIES)
    plain = inverse_frequencies(config)
    for factor in (8.0, 32.0, 16.0, 4.0, 2.0):
        scaling = RopeScaling(kind="llama3", factor=factor, original_max_positions=8192)
        scaled = dataclasses.replace(config, rope_scaling=scaling)
        if np.allclose(plain / inverse_frequencies(scaled), divisors, rtol=1e-4):
            return scaled
    raise ValueError(f"{file.path}: {_ROPE_FREQUENCIES} is not a llama3 scaling that is known")


def tensors_from_gguf(file: GGUF, config: LlamaConfig) -> dict[str, StoredTensor]:
    """The tensors under their Hugging Face names, de-quantised to float32 when they are read.

    Rows of llama's query and key weights stand interleaved in GGUF (pairs of one rotation side
    by side); they come back in halves, as everyone else has them.
    """
    stored = {}
    for name, (shape, _, _) in file.tensors.items():
        if math.prod(shape) > _MOST_VALUES:
            raise ValueError(f"{file.path}: tensor {name!r:.60} has shape {list(shape)}: too large")
        if name != _ROPE_FREQUENCIES:
            stored[_hf_name(file, name)] = StoredTensor(shape, _reader(file, name, config))
    return stored


def _hf_name(file: GGUF, name: str) -> str:
    if name in _TOP_NAMES:
        return _TOP_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in _LAYER_NAMES:
        raise ValueError(f"{file.path}: tensor {name!r} is not part of a supported architecture")
    return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{match[3]}"


def _reader(file: GGUF, name: str, config: LlamaConfig):
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}.get(name.split(".")[-2])

    def read() -> np.ndarray:
        tensor = _dequantised(file, name)
        if heads is None or config.model_type != "llama":
            return tensor
        if tensor.shape[0] % (2 * heads):
            raise ValueError(
                f"{file.path}: tensor {name!r} has {tensor.shape[0]} rows, which {heads} heads of "
                "pairs do not divide"
            )
        paired = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
        return paired.swapaxes(1, 2).reshape(tensor.shape)

    return read


def _dequantised(file: GGUF, name: str) -> np.ndarray:
    gguf = require_gguf()
    shape, kind, offset = file.tensors[name]
    try:
        quantisation = gguf.GGMLQuantizationType(kind)
    except ValueError:
        raise ValueError(f"{file.path}: tensor {name!r} has unknown type {kind}") from None
    size, per_block = gguf.GGML_QUANT_SIZES[quantisation]
    if shape[-1] % size or not all(shape):
        raise ValueError(
            f"{file.path}: tensor {name!r} of type {quantisation.name} has shape {list(shape)}, "
            f"which does not consist of blocks of {size}"
        )
    stored_shape = (*shape[:-1], shape[-1] // size * per_block)
    if offset + math.prod(stored_shape) > file.path.stat().st_size:
        raise ValueError(f"{file.path}: tensor {name!r} does not lie inside the file (truncated?)")
    raw = np.memmap(file.path, np.uint8, "r", offset, stored_shape)
    try:
        with np.errstate(all="ignore"):
            return gguf.quants.dequantize(raw, quantisation).reshape(shape)
    except NotImplementedError:
        raise ValueError(
            f"{file.path}: tensor {name!r} has type {quantisation.name}, which cannot be "
            "de-quantised; convert the file to F16, Q8_0 or another common type"
        ) from None


def require_gguf() -> Any:
    """The `gguf` package.

    Raises:
        ValueError: it is not installed; the message says how to.
    """
    try:
        import gguf
        import gguf.quants
    except ModuleNotFoundError:
        raise ValueError("GGUF files need the package gguf: pip install gguf") from None
    return gguf
