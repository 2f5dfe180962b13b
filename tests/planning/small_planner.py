"""A planner with random weights, small enough that its decisions can be computed anew each turn."""

import functools

import jax
import jax.numpy as jnp

from envs.household.format import FORMATS
from experiments.alfworld_data import entity_tokenizer, plain_tokenizer
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import Llama, init_params
from jaxagent.planning.household_player import PlannerModel


def small_config(vocab_size: int, max_positions: int = 512) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab_size, hidden_size=16, intermediate_size=24, num_layers=2, num_heads=2,
        num_kv_heads=2, head_dim=8, max_positions=max_positions, tie_embeddings=True,
        initializer_range=0.4,
    )  # fmt: skip


def small_planner(name: str, games=(), seed: int = 0, max_positions: int = 512) -> PlannerModel:
    tokenizer = entity_tokenizer() if name.startswith("compact") else plain_tokenizer(games)
    config = small_config(tokenizer.vocab_size, max_positions)
    return PlannerModel(config, init_params(config, jax.random.key(seed)), tokenizer, FORMATS[name])


def logits_after(model: PlannerModel, ids: list[int]):
    """The next token's logits from a single pass over the whole history."""
    padded = jnp.zeros((1, 512), jnp.int32).at[0, : len(ids)].set(jnp.asarray(ids))
    return _forward(model.config, model.params, padded)[0, len(ids) - 1]


@functools.partial(jax.jit, static_argnums=0)
def _forward(config, params, tokens):
    decoder = Llama(config)
    hidden = decoder.apply({"params": params}, tokens).hidden
    return decoder.apply({"params": params}, hidden, method="logits")
