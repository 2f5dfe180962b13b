"""What a Llama-family decoder looks like, read from and written to Hugging Face's `config.json`."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args

ModelType = Literal["llama", "qwen2", "qwen3"]
RopeKind = Literal["linear", "dynamic", "llama3", "yarn"]
Dtype = Literal["float32", "bfloat16"]

ARCHITECTURES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched beyond the length that the model was trained on."""

    kind: RopeKind
    factor: float
    original_max_positions: int
    """Context length of pre-training, before the stretch."""
    low_freq_factor: float = 1.0
    """llama3: wavelengths beyond original_max_positions / low_freq_factor are stretched in full."""
    high_freq_factor: float = 4.0
    """llama3: wavelengths under original_max_positions / high_freq_factor are left alone."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this over the context are left alone."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often than this are stretched in full."""
    attention_factor: float | None = None
    """yarn: scale of the rotated queries and keys; None is 0.1 log(factor) + 1."""

    def stretched(self, max_positions: int) -> int:
        """The context that the stretch makes room for, as vLLM counts it.

        Args:
            max_positions: what the model's files name as its context. Those of llama3 name the
                stretched one; of the others some do and some do not.
        """
        if self.kind == "llama3":
            return max_positions
        return max(max_positions, int(self.original_max_positions * self.factor))


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Sizes and switches of one decoder; hashable, so that it can be static under jit."""

    model_type: ModelType = "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    norm_epsilon: float = 1e-5
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tie_embeddings: bool = False
    initializer_range: float = 0.02
    dtype: Dtype = "float32"
    """In which the layers compute; norms, softmax and logits are float32 in either."""
    remat: bool = False
    """Keep nothing but each layer's input for the backward pass; else the matrix products too."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type is int and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{field.name} must be a positive integer, found {value!r}")
        for name, allowed in (("model_type", ModelType), ("dtype", Dtype)):
            if getattr(self, name) not in get_args(allowed):
                raise ValueError(
                    f"{name} must be one of {', '.join(get_args(allowed))}, "
                    f"found {getattr(self, name)!r}"
                )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must be divisible by "
                f"num_kv_heads ({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim ({self.head_dim}) must be even: rotary pairs")

    @classmethod
    def tiny(cls, vocab_size: int = 2048, **changes: Any) -> "LlamaConfig":
        """About 4 M parameters: trains from scratch on a CPU in minutes."""
        sizes: dict[str, Any] = {
            "vocab_size": vocab_size,
            "hidden_size": 256,
            "intermediate_size": 704,
            "num_layers": 4,
            "num_heads": 4,
            "num_kv_heads": 2,
            "head_dim": 64,
            "max_positions": 1024,
            "tie_embeddings": True,
        }
        return cls(**{**sizes, **changes})

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any], *, dtype: Dtype = "float32") -> "LlamaConfig":
        """Read the mapping that a `config.json` holds, of transformers 4 or 5.

        Raises:
            ValueError: the architecture, activation, rotary scaling or quantisation is not one
                that this decoder computes, or a required field is missing; named in the message.
        """
        model_type = hf.get("model_type")
        if model_type is None or model_type not in get_args(ModelType):
            raise ValueError(
                f"model_type {model_type!r} is not supported; "
                f"supported: {', '.join(get_args(ModelType))} (SmolLM2 is 'llama')"
            )
        _refuse_unsupported(hf)
        rope_theta, rope_scaling = _rope_from_hf(hf)
        most = _whole(hf, "max_position_embeddings")
        heads = _whole(hf, "num_attention_heads")
        biased = bool(hf.get("attention_bias", False))
        return cls(
            model_type=model_type,
            vocab_size=_whole(hf, "vocab_size"),
            hidden_size=_whole(hf, "hidden_size"),
            intermediate_size=_whole(hf, "intermediate_size"),
            num_layers=_whole(hf, "num_hidden_layers"),
            num_heads=heads,
            num_kv_heads=_whole(hf, "num_key_value_heads", heads),
            head_dim=_head_dim(hf, model_type),
            max_positions=most if rope_scaling is None else rope_scaling.stretched(most),
            rope_theta=rope_theta,
            rope_scaling=rope_scaling,
            norm_epsilon=_real(hf, "rms_norm_eps", 1e-6),
            qkv_bias=model_type == "qwen2" or biased,
            output_bias=biased and model_type != "qwen2",
            mlp_bias=bool(hf.get("mlp_bias", False)),
            qk_norm=model_type == "qwen3",
            tie_embeddings=bool(hf.get("tie_word_embeddings", False)),
            initializer_range=_real(hf, "initializer_range", 0.02),
            dtype=dtype,
        )

    @property
    def _hf_positions(self) -> int:
        """What a `config.json` calls max_position_embeddings: of these two kinds, the plain one."""
        scaling = self.rope_scaling
        if scaling is not None and scaling.kind in ("linear", "dynamic"):
            return scaling.original_max_positions
        return self.max_positions

    def to_hf(self) -> dict[str, Any]:
        """The mapping for `config.json`, in the spelling that transformers 4 and 5 both read."""
        hf: dict[str, Any] = {
            "architectures": [ARCHITECTURES[self.model_type]],
            "model_type": self.model_type,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self._hf_positions,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_epsilon,
            "tie_word_embeddings": self.tie_embeddings,
            "initializer_range": self.initializer_range,
            "torch_dtype": self.dtype,
        }
        if self.rope_scaling is not None:
            hf["rope_scaling"] = _rope_to_hf(self.rope_scaling)
        if self.model_type != "qwen2":
            hf["attention_bias"] = self.qkv_bias
        if self.model_type == "llama":
            hf["mlp_bias"] = self.mlp_bias
        return hf


def _required(hf: Mapping[str, Any], name: str) -> Any:
    if hf.get(name) is None:
        raise ValueError(f"config.json lacks {name!r}")
    return hf[name]


def _whole(hf: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """A count; where the file is silent, or says null, the default."""
    value = _required(hf, name) if default is None else (hf.get(name) or default)
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} ({value!r:.60}) must be a whole number of at least 1")
    return value


def _real(hf: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A positive number; see `_whole`."""
    value = _required(hf, name) if default is None else (hf.get(name) or default)
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise ValueError(f"{name} ({value!r:.60}) must be a positive number")
    return float(value)


def _head_dim(hf: Mapping[str, Any], model_type: str) -> int:
    if hf.get("head_dim"):
        return _whole(hf, "head_dim")
    if model_type == "qwen3":
        return 128  # what transformers assumes where the file is silent
    hidden, heads = _whole(hf, "hidden_size"), _whole(hf, "num_attention_heads")
    if hidden % heads:
        raise ValueError(
            f"hidden_size ({hidden}) must be divisible by num_attention_heads ({heads}) "
            "where head_dim is not given"
        )
    return hidden // heads


def _refuse_unsupported(hf: Mapping[str, Any]) -> None:
    activation = hf.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ValueError(f"hidden_act {activation!r} is not supported; supported: silu")
    quantised = hf.get("quantization_config")
    if quantised:
        is_described = isinstance(quantised, Mapping)
        method = quantised.get("quant_method", "unknown") if is_described else "unknown"
        raise ValueError(
            f"quantization_config ({method}) is not supported: give an unquantised folder or a GGUF"
        )
    if hf.get("use_sliding_window") or "sliding_attention" in str(hf.get("layer_types")):
        raise ValueError("sliding-window attention (use_sliding_window) is not supported")
    if (hf.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError(
            f"partial_rotary_factor {hf['partial_rotary_factor']} is not supported; supported: 1"
        )


def _rope_from_hf(hf: Mapping[str, Any]) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) from transformers 4's two fields or transformers 5's one."""
    for name in ("rope_scaling", "rope_parameters"):
        if not isinstance(hf.get(name) or {}, Mapping):
            raise ValueError(f"{name} ({hf[name]!r}) must be an object")
    given = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    theta = _real(
        {"rope_theta": given.get("rope_theta") or hf.get("rope_theta")}, "rope_theta", 1e4
    )
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "default":
        return theta, None
    if kind not in get_args(RopeKind):
        raise ValueError(
            f"rope_type {kind!r} is not supported; supported: default, "
            f"{', '.join(get_args(RopeKind))}"
        )
    if kind == "yarn" and (given.get("mscale") or given.get("mscale_all_dim")):
        raise ValueError("yarn with mscale is not supported: it belongs to another architecture")
    if given.get("truncate", True) is not True:
        raise ValueError("yarn with truncate = false is not supported")
    most = _whole(hf, "max_position_embeddings")
    is_plain = kind in ("linear", "dynamic")  # these two do not look at the other field
    name = "original_max_position_embeddings"
    original = most if is_plain else _whole(given, name, most)
    is_told = kind != "yarn" or given.get("factor") is not None
    factor = _required(given, "factor") if is_told else most / original
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1 <= factor < 1e9:
        raise ValueError(f"rope scaling: factor ({factor!r}) must be a number of at least 1")
    return theta, RopeScaling(
        kind=kind,
        factor=float(factor),
        original_max_positions=original,
        low_freq_factor=_real(given, "low_freq_factor", 1.0),
        high_freq_factor=_real(given, "high_freq_factor", 4.0),
        beta_fast=_real(given, "beta_fast", 32.0),
        beta_slow=_real(given, "beta_slow", 1.0),
        attention_factor=(
            _real(given, "attention_factor") if given.get("attention_factor") else None
        ),
    )


def _rope_to_hf(scaling: RopeScaling) -> dict[str, Any]:
    hf: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind in ("llama3", "yarn"):
        hf["original_max_position_embeddings"] = scaling.original_max_positions
    if scaling.kind == "llama3":
        hf["low_freq_factor"] = scaling.low_freq_factor
        hf["high_freq_factor"] = scaling.high_freq_factor
    if scaling.kind == "yarn":
        hf["beta_fast"], hf["beta_slow"] = scaling.beta_fast, scaling.beta_slow
        if scaling.attention_factor is not None:
            hf["attention_factor"] = scaling.attention_factor
    return hf
