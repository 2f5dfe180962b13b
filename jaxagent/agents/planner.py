"""A planner that learns from token sequences: parameters, loss and optimiser as pure functions."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from flax import struct
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.losses.imitation import token_cross_entropy
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama, init_params
from jaxagent.models.llm.llama_asked import features_at
from jaxagent.models.llm.lora import LoRA
from jaxagent.models.llm.words import Factors, with_embedding

Params = Mapping[str, Any]

OPTIMIZERS = ("adamw", "muon")
# Names are copied before anything else is learnt. For that an embedding has to outweigh what the
# layers add to it at first; the last norm begins small in turn, or the first logits were large.
# Queries and keys begin equal: like attends to like (Trockman & Kolter 2023), which is what finding
# the wanted thing in a list takes. Half as many updates to the same loss as without all this.
_EMBEDDING_DEVIATION, _BRANCH_SCALE, _FINAL_NORM_SCALE = 0.5, 0.1, 0.15
_B2 = 0.99


class TokenBatch(NamedTuple):
    """Packed episodes; what is asked stands apart, so the vocabulary is paid for only there."""

    tokens: Int[Array, "B L"]
    positions: Int[Array, "B L"]  # restart in every episode
    segment_ids: Int[Array, "B L"]  # of the episode, 0 is padding
    target_position: Int[Array, "B M"]  # of the token after which the target is asked
    target: Int[Array, "B M"]
    target_mask: Bool[Array, "B M"]


@dataclasses.dataclass(frozen=True)
class ImitationConfig:
    """Supervised training of the planner."""

    optimizer: str = "adamw"
    """adamw, or muon (matrices of the layers by Muon, all else by AdamW): for whole models."""
    learning_rate: float = 2e-3
    """Peak of the schedule: linear warm-up, then a cosine down to zero at the last update."""
    warmup_updates: int = 100
    """Updates until the peak."""
    weight_decay: float = 0.05
    """Of matrices alone; with muon, of those of the layers."""
    max_gradient_norm: float = 1.0
    """Gradients are scaled down to this global norm."""
    accumulation: int = 1
    """Batches whose gradients make up one update."""

    def __post_init__(self):
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"optimizer ({self.optimizer}) must be one of {', '.join(OPTIMIZERS)}")
        for name in ("learning_rate", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be greater than 0")
        if self.weight_decay < 0 or self.warmup_updates < 0:
            raise ValueError(
                f"weight_decay ({self.weight_decay}) and warmup_updates ({self.warmup_updates}) "
                "must be at least 0"
            )
        if self.accumulation < 1:
            raise ValueError(f"accumulation ({self.accumulation}) must be at least 1")


class ImitationState(struct.PyTreeNode, kw_only=True):
    """All that training changes."""

    params: Any
    optimizer_state: Any
    update: Int[Array, ""]  # updates done
    nonfinite_in_a_row: Int[Array, ""]  # the last updates that were dropped


class Imitation:
    """Behaviour cloning of token sequences.

    Args (of the constructor):
        model: sizes of the decoder.
        config: of the optimiser.
        num_updates: the schedule ends with the last of these.
        factors: of the embedding, where things are sums of a kind and a number; None keeps the
            plain [V, D] table.
        lora: learn low-rank terms alone, beside frozen parameters.

    Raises:
        ValueError: the warm-up is longer than the training, or the factors are of another
            vocabulary.
    """

    def __init__(
        self,
        model: LlamaConfig,
        config: ImitationConfig,
        num_updates: int,
        *,
        factors: Factors | None = None,
        lora: LoRA | None = None,
    ):
        if not config.warmup_updates < num_updates:
            raise ValueError(
                f"warmup_updates ({config.warmup_updates}) must be less than the number of "
                f"updates ({num_updates})"
            )
        if factors is not None and len(factors.stem) != model.vocab_size:
            raise ValueError(
                f"vocab_size ({model.vocab_size}) must be that of the tokeniser "
                f"({len(factors.stem)})"
            )
        self.model, self.config, self.factors, self.lora = model, config, factors, lora
        self.schedule = optax.warmup_cosine_decay_schedule(
            0.0, config.learning_rate, config.warmup_updates, num_updates
        )
        if lora is not None and config.optimizer != "adamw":
            raise ValueError(f"optimizer ({config.optimizer}) must be adamw with low-rank terms")
        self._optimizer = optax.chain(
            optax.clip_by_global_norm(config.max_gradient_norm), _optimizer(config, self.schedule)
        )

    def init(self, key: PRNGKeyArray, params: Params | None = None) -> ImitationState:
        """A state with random parameters (LoRA: terms that change nothing), or with given ones."""
        if self.lora is not None:
            params = self.lora.init(self.model, key)
        elif params is None:
            params = self._random_params(key)
        return ImitationState(
            params=params,
            optimizer_state=self._optimizer.init(params),
            update=jnp.zeros((), jnp.int32),
            nonfinite_in_a_row=jnp.zeros((), jnp.int32),
        )

    def _random_params(self, key: PRNGKeyArray) -> dict:
        decoder_key, stem_key, number_key = jax.random.split(key, 3)
        params = init_params(self.model, decoder_key)
        if self.factors is None:
            return params
        del params["embedding"]
        for branch, last in (("attention", "output"), ("mlp", "down")):
            kernel = params["layers"][branch][last]["kernel"]
            params["layers"][branch][last]["kernel"] = _BRANCH_SCALE * kernel
        attention = params["layers"]["attention"]
        if self.model.num_kv_heads == self.model.num_heads:
            attention["key"]["kernel"] = jnp.copy(attention["query"]["kernel"])
        params["final_norm"] = {"scale": _FINAL_NORM_SCALE * params["final_norm"]["scale"]}
        for name, rows, row_key in (
            ("stem", self.factors.stem, stem_key),
            ("number", self.factors.number, number_key),
        ):
            shape = (int(rows.max()) + 1, self.model.hidden_size)
            params[name] = _EMBEDDING_DEVIATION * jax.random.normal(row_key, shape)
        return params

    def variables(self, params: Params, frozen: Params | None) -> dict[str, Any]:
        """What `Llama` reads."""
        if self.lora is not None:
            return {"params": frozen, **self.lora.variables(dict(params))}
        return {"params": with_embedding(params, self.factors)}

    def loss(
        self,
        params: Params,
        frozen: Params | None,
        batch: TokenBatch,
        normaliser: Float[Array, ""],
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Cross-entropy of the targets, and how many of them are the most likely token.

        Both are sums over the batch divided by `normaliser`.
        """
        decoder, variables = Llama(self.model), self.variables(params, frozen)
        asked = features_at(
            self.model,
            variables,
            batch.tokens,
            batch.target_position,
            positions=batch.positions,
            segment_ids=batch.segment_ids,
        )
        logits: Any = decoder.apply(variables, asked, method="logits")
        loss = token_cross_entropy(
            logits,
            batch.target,
            batch.target_mask,
            normalisation="constant",
            normaliser=normaliser,
        )
        # By the maximum: argmax takes several times as long on a CPU.
        chosen = jnp.take_along_axis(logits, batch.target[..., None], axis=-1)[..., 0]
        hit = (chosen >= jnp.max(logits, axis=-1)) & batch.target_mask
        return loss, jnp.sum(hit) / normaliser

    def update(
        self, state: ImitationState, frozen: Params | None, batches: TokenBatch
    ) -> tuple[ImitationState, dict[str, Float[Array, ""]]]:
        """One step of the optimiser.

        Args:
            state: donated by whoever jits this.
            frozen: with LoRA, the parameters beside which it learns; None otherwise.
            batches: `accumulation` of them on a leading axis; every target of all counts alike.

        Returns:
            The new state and its metrics. An update whose gradient is not finite changes nothing
            but the count of such updates.
        """
        count = jnp.maximum(jnp.sum(batches.target_mask), 1).astype(jnp.float32)
        gradient_of = jax.value_and_grad(self.loss, has_aux=True)

        def add(total, batch):
            return jax.tree.map(
                jnp.add, total, gradient_of(state.params, frozen, batch, count)
            ), None

        if self.config.accumulation == 1:
            first = jax.tree.map(lambda x: x[0], batches)
            (loss, accuracy), gradient = gradient_of(state.params, frozen, first, count)
        else:
            zero = jnp.zeros(())
            start = ((zero, zero), jax.tree.map(jnp.zeros_like, state.params))
            ((loss, accuracy), gradient), _ = jax.lax.scan(add, start, batches)
        state, norm = self._step(state, gradient, loss)
        metrics = {
            "loss": loss,
            "accuracy": accuracy,
            "gradient_norm": norm,
            "learning_rate": jnp.asarray(self.schedule(state.update - 1), jnp.float32),
            "targets": count,
            "nonfinite_in_a_row": state.nonfinite_in_a_row.astype(jnp.float32),
        }
        return state, metrics

    def _step(
        self, state: ImitationState, gradient, loss: Float[Array, ""]
    ) -> tuple[ImitationState, Float[Array, ""]]:
        norm = optax.tree.norm(gradient)
        changes, optimizer_state = self._optimizer.update(
            gradient, state.optimizer_state, state.params
        )
        params = optax.apply_updates(state.params, changes)
        is_finite = jnp.isfinite(norm) & jnp.isfinite(loss)

        def keep(new, old):
            return jax.tree.map(lambda n, o: jnp.where(is_finite, n, o), new, old)

        return ImitationState(
            params=keep(params, state.params),
            optimizer_state=keep(optimizer_state, state.optimizer_state),
            update=state.update + 1,
            nonfinite_in_a_row=jnp.where(is_finite, 0, state.nonfinite_in_a_row + 1),
        ), norm


def _optimizer(config: ImitationConfig, schedule: optax.Schedule) -> optax.GradientTransformation:
    decay = config.weight_decay
    if config.optimizer == "adamw":
        return optax.adamw(schedule, b2=_B2, weight_decay=decay, mask=_matrices)
    return optax.contrib.muon(
        schedule,
        weight_decay=decay,
        adam_b2=_B2,
        muon_weight_dimension_numbers=_layer_matrices,
        # A step's root mean square is the learning rate (Liu et al. 2025, section 2.2, take 0.2 of
        # it, as AdamW has); of twice as much a small model learns no faster.
        consistent_rms=1.0,
    )


def _layer_matrices(params: Any) -> Any:
    """The kernels of the layers, which are stacked [layers, in, out]; None for all else."""

    def numbers(path, leaf):
        is_matrix = path[0].key == "layers" and path[-1].key == "kernel"
        return optax.contrib.MuonDimensionNumbers(1, 2) if is_matrix else None

    return jax.tree_util.tree_map_with_path(numbers, params)


def _matrices(params: Params) -> Params:
    """What weight decay is for: not the scales of norms, nor biases (stacked over layers)."""

    def is_matrix(path, leaf) -> bool:
        return path[-1].key not in ("scale", "bias")

    return jax.tree_util.tree_map_with_path(is_matrix, params)
