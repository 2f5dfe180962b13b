"""Low-rank adapters (Hu et al. 2021), apart from the model or merged into it, in PEFT's format."""

import dataclasses
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.saved_files import ADAPTER_FILES, replaced_files
from jaxagent.models.llm.tensor_files import (
    StoredTensor,
    TensorSpec,
    open_safetensors_file,
    read_json_object,
    write_safetensors,
)
from jaxagent.models.llm.weights import (
    MODULE_NAMES,
    TOP_NAMES,
    abstract_params,
    flatten,
    layer_name,
    linear_paths,
    unflatten,
)

Adapters = dict[str, Any]
"""For each adapted module, under its path in the parameters: a [layers, in, r], b [layers, r, out].
"""

_PREFIX = "base_model.model."
_PLAIN: dict[str, tuple] = {
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, [], ()),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layers_to_transform": (None, []),
    "layer_replication": (None, []),
    "lora_bias": (False, None),
    "use_qalora": (False, None),
    "trainable_token_indices": (None, [], {}),
    "target_parameters": (None, []),
    "alora_invocation_tokens": (None, []),
    "arrow_config": (None,),
    "megatron_config": (None,),
    "ensure_weight_tying": (False, None),
    # The others (pissa, olora, corda, loftq, lora_ga) take something out of the model's own
    # weights when they begin: what is added belongs to those changed weights.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}
"""Fields of adapter_config.json that change what is computed, and the values we compute."""

_NEUTRAL = {
    "peft_type",
    "task_type",
    "auto_mapping",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "peft_version",
    "r",
    "lora_alpha",
    "lora_dropout",
    "target_modules",
    "exclude_modules",
    "layers_pattern",
    "megatron_core",
    "loftq_config",
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "qalora_group_size",
    "runtime_config",
}
"""Fields that are read elsewhere, or that matter in training alone."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoRA:
    """Which linear layers get W + (alpha / rank) A B, and of what rank.

    The adapters are a tree of their own, so that gradients go to them alone:

        loss(adapters) = f(Llama(config).apply({"params": params, **lora.variables(adapters)}, …))
    """

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("query", "value")
    """Names of linear modules: query, key, value, output, gate, up, down, unembedding."""

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, found {self.rank}")
        if not self.targets:
            raise ValueError("targets must name at least one linear module, found none")

    @property
    def scale(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank

    def init(self, config: LlamaConfig, key: PRNGKeyArray) -> Adapters:
        """Adapters that change nothing yet: A uniform in ±1/√in as PEFT draws it, B zero.

        Raises:
            ValueError: a target that this model does not have.
        """
        flat = {}
        paths = self._paths(config)
        shapes = abstract_params(config)
        for path, path_key in zip(paths, jax.random.split(key, len(paths))):
            *layers, width, out = shapes[(*path, "kernel")].shape
            bound = 1 / math.sqrt(width)
            shape = (*layers, width, self.rank)
            flat[(*path, "a")] = jax.random.uniform(path_key, shape, minval=-bound, maxval=bound)
            flat[(*path, "b")] = jnp.zeros((*layers, self.rank, out))
        return unflatten(flat)

    def variables(self, adapters: Adapters) -> dict[str, Adapters]:
        """What to give `Llama.apply` beside the parameters to compute with the adapters apart."""
        scaled = {p: x * self.scale if p[-1] == "b" else x for p, x in flatten(adapters).items()}
        return {"lora": unflatten(scaled)}

    def merge(self, params: Mapping[str, Any], adapters: Adapters) -> dict[str, Any]:
        """Parameters with the adapters added in: the same outputs up to rounding, no extra cost."""
        flat, low_rank = flatten(params), flatten(adapters)
        for path in {path[:-1] for path in low_rank}:
            a, b = low_rank[(*path, "a")], low_rank[(*path, "b")]
            kernel = flat[(*path, "kernel")]
            change = self.scale * jnp.matmul(a, b)
            flat[(*path, "kernel")] = (kernel + change).astype(kernel.dtype)
        return unflatten(flat)

    def _paths(self, config: LlamaConfig) -> list[tuple[str, ...]]:
        linear = list(linear_paths(config))
        known = [path[-1] for path in linear]
        unknown = [name for name in self.targets if name not in known]
        if unknown:
            raise ValueError(
                f"targets must be among {', '.join(known)}, found {', '.join(unknown)}"
            )
        return [path for path in linear if path[-1] in self.targets]


def save_lora(
    folder: str | Path,
    config: LlamaConfig,
    lora: LoRA,
    adapters: Adapters,
    *,
    base: str | None = None,
) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors`, which PEFT reads.

    Args:
        folder: made if it is not there.
        config: of the model.
        lora: how the adapters are added.
        adapters: of this model.
        base: name or folder of the model that they belong to, for whoever reads them.
    """
    tensors = dict(_peft_tensors(config, adapters))
    specs = [TensorSpec(name, t.shape, t.dtype) for name, t in tensors.items()]
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(_peft_name(target) for target in lora.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    last = "adapter_config.json"
    with replaced_files(Path(folder), last=last, replaced=ADAPTER_FILES) as made:
        write_safetensors(made / "adapter_model.safetensors", specs, tensors.__getitem__)
        (made / last).write_text(json.dumps(described, indent=2) + "\n")


def _peft_name(target: str) -> str:
    return "lm_head" if target == "unembedding" else MODULE_NAMES[target]


def _peft_tensors(config: LlamaConfig, adapters: Adapters):
    for path, leaf in flatten(adapters).items():
        array = np.asarray(leaf)
        for layer, tensor in enumerate(array if path[0] == "layers" else [array]):
            yield _peft_key(path, layer), np.ascontiguousarray(tensor.T)


def _peft_key(path: tuple[str, ...], layer: int) -> str:
    kernel = (*path[:-1], "kernel")
    name = layer_name(kernel, layer) if path[0] == "layers" else TOP_NAMES[kernel]
    return f"{_PREFIX}{name.removesuffix('weight')}lora_{path[-1].upper()}.weight"


def load_lora(folder: str | Path, config: LlamaConfig) -> tuple[LoRA, Adapters]:
    """Adapters that PEFT or `save_lora` wrote.

    Raises:
        ValueError: no adapter there, a variant of LoRA that is not supported (named), tensors
            that this model has no place for, that are missing, or of another shape.
    """
    folder = Path(folder)
    file = folder / "adapter_config.json"
    if not file.is_file():
        raise ValueError(f"{folder} holds no adapter: it has no adapter_config.json")
    described = read_json_object(file)
    if described.get("peft_type") != "LORA":
        raise ValueError(f"{file}: peft_type {described.get('peft_type')!r} is not supported: LORA")
    for field, value in described.items():
        if field in _NEUTRAL or (field not in _PLAIN and value in (None, False, [], {})):
            continue
        # By type, too: 0 is not False.
        if not any(
            type(value) is type(plain) and value == plain for plain in _PLAIN.get(field, ())
        ):
            raise ValueError(f"{file}: {field} = {value!r:.60} is not supported")
    rank, alpha = described.get("r"), described.get("lora_alpha")
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise ValueError(f"{file}: r ({rank!r}) must be a whole number of at least 1")
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise ValueError(f"{file}: lora_alpha ({alpha!r}) must be a number")
    stored = open_safetensors_file(folder / "adapter_model.safetensors")
    found = {
        match[1] for name in stored if (match := re.search(r"(\w+)\.lora_[AB]\.weight$", name))
    }
    ours = {_peft_name(path[-1]): path[-1] for path in linear_paths(config)}
    unknown = found - set(ours)
    if unknown or not found:
        raise ValueError(f"{folder} adapts {sorted(unknown)}, which this model does not have")
    lora = LoRA(
        rank=rank,
        alpha=float(alpha),
        targets=tuple(target for name, target in ours.items() if name in found),
    )
    return lora, _read_adapters(folder, config, lora, stored)


def _read_adapters(
    folder: Path, config: LlamaConfig, lora: LoRA, stored: dict[str, StoredTensor]
) -> Adapters:
    shapes = flatten(jax.eval_shape(lambda key: lora.init(config, key), jax.random.key(0)))
    flat, used = {}, set()
    for path, leaf in shapes.items():
        layered = path[0] == "layers"
        names = [_peft_key(path, layer) for layer in range(config.num_layers if layered else 1)]
        for name in names:
            if name not in stored:
                raise ValueError(f"{folder} lacks {name}")
            if stored[name].shape != leaf.shape[-2:][::-1]:
                raise ValueError(
                    f"{folder}: {name} has shape {list(stored[name].shape)}, the model and rank "
                    f"{lora.rank} say {list(leaf.shape[-2:][::-1])}"
                )
        tensors = [np.asarray(stored[name].read()).T.astype(np.float32) for name in names]
        flat[path] = jnp.asarray(np.stack(tensors) if layered else tensors[0])
        used.update(names)
    surplus = sorted(set(stored) - used)
    if surplus:
        raise ValueError(f"{folder} holds {surplus[0]}, which is not part of a LoRA of this model")
    return unflatten(flat)
