"""Behaviour cloning: a policy starts from what another one was seen to do."""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxagent.losses import (
    behaviour_cloning_loss,
    behaviour_cloning_squared_error,
    tanh_normal_log_prob,
)
from jaxagent.models.normaliser import update_normaliser

LOSSES = ("squared_error", "likelihood")
HELD_OUT = 10  # one sample in so many is not trained on
LARGEST_ACTION = 1.0 - 1e-6  # what an action of 1 is taken for before tanh is undone
LARGEST_PRE_TANH = 20.0  # tanh is 1 in float32 from 9 on; squares of this stay far from overflow


@dataclasses.dataclass(frozen=True)
class CloningConfig:
    """How a warm start is learnt."""

    cloning_steps: int = 3000
    """Gradient steps."""
    cloning_batch_size: int = 256
    """Samples in one gradient step."""
    cloning_learning_rate: float = 1e-3
    """Step size of Adam, falling to 0 along a cosine."""
    cloning_loss: str = "squared_error"
    """squared_error of the deterministic action, which leaves the exploration as it is; or
    likelihood, which also learns the demonstrator's own spread: of a deterministic one, none."""

    def __post_init__(self):
        for name in ("cloning_steps", "cloning_batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if not 0 < self.cloning_learning_rate < float("inf"):
            raise ValueError(
                f"cloning_learning_rate ({self.cloning_learning_rate}) must be a positive, "
                "finite number"
            )
        if self.cloning_loss not in LOSSES:
            raise ValueError(
                f"cloning_loss ({self.cloning_loss}) must be one of {', '.join(LOSSES)}"
            )


class Demonstrations(NamedTuple):
    """What was seen and done; the samples of one episode lie side by side."""

    observation: Float[Array, "N O"]  # raw
    action: Float[Array, "N A"]  # in [-1, 1]
    pre_tanh: Float[Array, "N A"]  # what is not finite is worked out again from the action


def undo_tanh(action: Float[Array, "*S"]) -> Float[Array, "*S"]:
    """u with tanh(u) = a; finite also at a = ±1 and beyond, where it is that of ±(1 - 1e-6)."""
    return jnp.arctanh(jnp.clip(action, -LARGEST_ACTION, LARGEST_ACTION))


class TanhNormalAgent(Protocol):
    """An agent whose state has `policy_params` and the `normaliser` of its observations."""

    def distribution(
        self, state: Any, observation: Float[Array, "*S O"]
    ) -> tuple[Float[Array, "*S A"], Float[Array, "*S A"]]:
        """(loc, scale) of the action before tanh."""
        ...


def clone_behaviour(
    agent: TanhNormalAgent,
    state: Any,
    demonstrations: Demonstrations,
    config: CloningConfig,
    key: PRNGKeyArray,
) -> tuple[Any, dict[str, Float[Array, ""]]]:
    """Supervised learning of the policy alone (`behaviour_cloning_loss`); pure.

    Args:
        agent: what the state is of.
        state: fresh; its observation statistics take in the demonstrations first.
        demonstrations: of the same task, JAX's arrays or NumPy's. The last tenth, whole
            episodes but for the first, is held out. Actions of ±1 are at the edge of what a
            tanh-normal policy can do: where `pre_tanh` is not finite there, `undo_tanh` finds
            one that is.
        config: how it is learnt.
        key: consumed by the choice of batches.

    Returns:
        The state with the cloned policy; critics, optimisers and counters as they were. And the
        held-out loss before and after, `cloning_loss_before` and `cloning_loss_after`.
    """
    demonstrations = _at_the_edge(demonstrations)
    state = state.replace(
        normaliser=update_normaliser(state.normaliser, demonstrations.observation)
    )
    count = demonstrations.observation.shape[0]
    trained = count - count // HELD_OUT
    held_out = jax.tree.map(lambda x: x[trained:] if trained < count else x, demonstrations)
    optimiser = optax.adam(
        optax.cosine_decay_schedule(config.cloning_learning_rate, config.cloning_steps)
    )

    def loss(params: Any, samples: Demonstrations) -> Float[Array, ""]:
        loc, scale = agent.distribution(state.replace(policy_params=params), samples.observation)
        live = jnp.ones(loc.shape[0], bool)
        if config.cloning_loss == "likelihood":
            return behaviour_cloning_loss(tanh_normal_log_prob(samples.pre_tanh, loc, scale), live)
        return behaviour_cloning_squared_error(jnp.tanh(loc), samples.action, live)

    def step(carry, number):
        params, memory = carry
        noise = jax.random.fold_in(key, number)
        index = jax.random.randint(noise, (config.cloning_batch_size,), 0, trained)
        batch = jax.tree.map(lambda x: x[index], demonstrations)
        change, memory = optimiser.update(jax.grad(loss)(params, batch), memory)
        return (optax.apply_updates(params, change), memory), None

    before = state.policy_params
    carry = (before, optimiser.init(before))
    (after, _), _ = jax.lax.scan(step, carry, jnp.arange(config.cloning_steps))
    metrics = {
        "cloning_loss_before": loss(before, held_out),
        "cloning_loss_after": loss(after, held_out),
    }
    return state.replace(policy_params=after), metrics


def _at_the_edge(demonstrations: Demonstrations) -> Demonstrations:
    """The same with a finite `pre_tanh` for every finite action."""
    observation, action, pre_tanh = jax.tree.map(jnp.asarray, demonstrations)
    known = jnp.where(jnp.isfinite(pre_tanh), pre_tanh, undo_tanh(action))
    return Demonstrations(observation, action, jnp.clip(known, -LARGEST_PRE_TANH, LARGEST_PRE_TANH))
