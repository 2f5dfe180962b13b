"""The model that a household planner trains, with its optimiser and the shapes of its batches."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envs.household.game import load_game
from envs.household.world import HOUSEHOLD
from experiments.alfworld_data import Games, entity_tokenizer, human_words, plain_tokenizer
from experiments.household_episodes import words_in
from experiments.planner_config import PlannerConfig
from jaxagent.agents.planner import Imitation
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.load import load_model
from jaxagent.models.llm.lora import LoRA
from jaxagent.models.llm.words import SubwordTokenizer, WordTokenizer
from jaxagent.planning.planner_files import load_planner
from jaxagent.training.packing import Shape

# Tokens an episode may have at the most; longer ones lose their oldest turns while playing.
_CONTEXT = {"compact": 1024, "plain": 2048}


class Learner(NamedTuple):
    """What learns, and what it needs to be written and kept."""

    imitation: Imitation
    tokenizer: WordTokenizer | SubwordTokenizer
    initial: Any
    frozen: Any
    source: str | None
    """The language model that training began with; None from scratch."""


def make_learner(config: PlannerConfig, games: Games) -> Learner:
    """The model of the preset with its optimiser.

    Raises:
        ValueError: the model cannot be loaded.
    """
    updates = config.run.num_updates
    if config.preset == "tiny":
        words = human_words(games.split.train) if config.goals == "human" else []
        compact = config.style.startswith("compact")
        if compact:
            tokenizer = entity_tokenizer(words)
        else:
            some = games.generated[:200] or [load_game(p) for p in games.split.train[:200]]
            tokenizer = plain_tokenizer(some, [*words, *words_in(games.recorded)])
        model = tiny_model(tokenizer, config.style, config.dtype)
        imitation = Imitation(
            model, config.imitation, updates, factors=tokenizer.factors if compact else None
        )
        initial = _initial_params(config.initial, imitation, tokenizer)
        return Learner(imitation, tokenizer, initial, None, None)
    source = "smollm2-135m" if config.preset == "smollm2" else config.preset.removeprefix("hf:")
    # What is not learnt needs no more digits than it is computed with.
    base = load_model(source, dtype=config.dtype if config.lora_rank else "float32")  # type: ignore[arg-type]
    model = dataclasses.replace(base.config, dtype=config.dtype, remat=True)
    lora = None
    if config.lora_rank:
        lora = LoRA(rank=config.lora_rank, alpha=2.0 * config.lora_rank)
    imitation = Imitation(model, config.imitation, updates, lora=lora)
    if len(base.tokenizer) > model.vocab_size:
        raise ValueError(
            f"preset ({config.preset}): its tokeniser has {len(base.tokenizer)} tokens, its model "
            f"{model.vocab_size}"
        )
    longest = max(shape.length for shape in batch_shapes(config))
    if longest > model.max_positions:
        raise ValueError(
            f"row_tokens ({config.row_tokens}): episodes may have {longest} tokens, twice as many; "
            f"the context of preset ({config.preset}) has {model.max_positions}"
        )
    tokenizer = SubwordTokenizer(base.tokenizer, model.vocab_size, base.end_tokens)
    initial, frozen = (None, base.params) if lora else (base.params, None)
    return Learner(imitation, tokenizer, initial, frozen, source)


def _initial_params(source: str | None, imitation: Imitation, tokenizer: WordTokenizer) -> Any:
    """Parameters of a planner that has been trained before; None draws them.

    Raises:
        ValueError: it is of another vocabulary or another size.
    """
    if source is None:
        return None
    planner = load_planner(source, HOUSEHOLD)
    known = planner.tokenizer
    if not isinstance(known, WordTokenizer) or known.to_dict() != tokenizer.to_dict():
        raise ValueError(f"initial ({source}) has another vocabulary than this run")
    ours = jax.eval_shape(lambda key: imitation.init(key).params, jax.random.key(0))
    if jax.tree.map(jnp.shape, planner.params) != jax.tree.map(jnp.shape, ours):
        raise ValueError(f"initial ({source}) is a model of another size than this run's")
    return planner.params


def tiny_model(tokenizer: WordTokenizer, style: str, dtype: Any = "float32") -> LlamaConfig:
    """The decoder of about 1 M parameters; its type is that of the family with normed keys."""
    return LlamaConfig(
        model_type="qwen3",
        qk_norm=True,  # Muon's large steps need it: half as many updates to the same loss
        vocab_size=tokenizer.vocab_size,
        hidden_size=128,
        intermediate_size=352,
        num_layers=4,
        num_heads=4,
        num_kv_heads=4,
        head_dim=32,
        max_positions=_CONTEXT[style.partition("-")[0]],
        tie_embeddings=True,
        # 1 / sqrt(128): with the usual 0.02 so narrow a model takes twice as long to learn.
        initializer_range=0.08,
        dtype=dtype,
    )


# Share of a row's tokens that are asked for, at most: a little above that of any demonstration.
_ASKED = {
    "compact": 0.25,
    "compact-without-notes": 0.35,
    "compact-hierarchical": 0.35,
    "plain": 0.45,
    "plain-hierarchical": 0.55,
}


def batch_shapes(config: PlannerConfig) -> list[Shape]:
    """Shapes of batches: the usual one, and half as many rows of twice the length."""
    asked = _ASKED[config.style]
    short, long = config.rows, max(config.rows // 2, 1)
    tokens = config.row_tokens
    return [
        Shape(short, tokens, int(asked * tokens)),
        Shape(long, 2 * tokens, int(2 * asked * tokens)),
    ]
