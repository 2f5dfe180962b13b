"""Hyper-parameters of soft actor-critic with hindsight, checked when they are made."""

import dataclasses
import typing

from jaxagent.losses.hindsight import Strategy
from jaxagent.models.networks import ACTIVATIONS

STRATEGIES = typing.get_args(Strategy)


@dataclasses.dataclass(frozen=True)
class SACConfig:
    """Hyper-parameters of soft actor-critic with hindsight experience replay."""

    actor_learning_rate: float = 1e-3
    """Step size of the policy's Adam."""
    critic_learning_rate: float = 1e-3
    """Step size of the critics' Adam."""
    temperature_learning_rate: float = 1e-3
    """Step size of the temperature's Adam; 0 keeps the temperature."""
    initial_temperature: float = 0.1
    """alpha at the start: what a nat of entropy is worth."""
    target_entropy: float | None = None
    """Entropy in nats that the temperature aims for; None is minus the number of actions."""
    discount_factor: float = 0.97
    """gamma, per environment step."""
    reward_scale: float = 0.1
    """Rewards are multiplied by this before learning; it keeps values near 1."""
    num_steps: int = 1
    """Rewards summed before the bootstrap; fewer where an episode ends first."""
    polyak_rate: float = 0.005
    """Share by which the target critics follow the critics at each update."""
    num_critics: int = 2
    """Critics in the ensemble; the target takes the minimum."""
    batch_size: int = 256
    """Transitions in one gradient step, over all devices."""
    updates_per_iteration: int = 16
    """Gradient steps after each unroll."""
    buffer_size: int = 200_000
    """Transitions kept, over all environments."""
    learning_starts: int = 5_000
    """Transitions collected before the first gradient step."""
    strategy: Strategy = "future"
    """Which achieved goals are pretended to have been meant: future, final or episode."""
    relabel_share: float = 0.8
    """k: share of the transitions that are relabelled, in [0, 1]; 0 is no hindsight."""
    sample_groups: int = 8
    """The buffer is sampled within this many groups of environments, so that the result does not
    depend on the number of devices, which must divide it."""
    max_gradient_norm: float = 10.0
    """Gradients are clipped to this global norm, policy and critics apart."""
    policy_hidden_sizes: tuple[int, ...] = (128, 128)
    """Width of each hidden layer of the policy, after the encoders."""
    critic_hidden_sizes: tuple[int, ...] = (128, 128)
    """Width of each hidden layer of a critic, after the encoders."""
    activation: str = "relu"
    """tanh, relu, swish or elu."""
    normalise_observations: bool = True
    """Centre and scale observations by their running statistics."""

    def __post_init__(self):
        for name in ("discount_factor", "relabel_share", "polyak_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must lie in [0, 1]")
        positive = ("actor_learning_rate", "critic_learning_rate", "initial_temperature")
        positive += ("reward_scale", "max_gradient_norm")
        for name in positive:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must be a positive, finite number"
                )
        if not 0 <= self.temperature_learning_rate < float("inf"):
            raise ValueError(
                f"temperature_learning_rate ({self.temperature_learning_rate}) must be at least 0 "
                "and finite"
            )
        counts = ("num_steps", "num_critics", "batch_size", "updates_per_iteration")
        counts += ("sample_groups", "learning_starts")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.batch_size % self.sample_groups:
            raise ValueError(
                f"batch_size ({self.batch_size}) must be divisible by sample_groups "
                f"({self.sample_groups})"
            )
        if self.buffer_size < self.batch_size:
            raise ValueError(
                f"buffer_size ({self.buffer_size}) must be at least batch_size ({self.batch_size})"
            )
        for name in ("policy_hidden_sizes", "critic_hidden_sizes"):
            if any(size < 1 for size in getattr(self, name)):
                raise ValueError(f"{name} {getattr(self, name)} must be positive widths")
        for name, known in (("strategy", STRATEGIES), ("activation", tuple(ACTIVATIONS))):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must be one of {', '.join(known)}"
                )

    def sizes(self, num_envs: int, unroll_length: int) -> "BufferSizes":
        """How the buffer is laid out over environments.

        Raises:
            ValueError: the environments cannot be cut into groups, or the buffer is too small.
        """
        if num_envs % self.sample_groups:
            raise ValueError(
                f"num_envs ({num_envs}) must be divisible by sample_groups ({self.sample_groups})"
            )
        row_length = self.buffer_size // num_envs
        if row_length < unroll_length:
            raise ValueError(
                f"buffer_size ({self.buffer_size}) must be at least num_envs * unroll_length "
                f"({num_envs} * {unroll_length})"
            )
        return BufferSizes(
            rows=num_envs // self.sample_groups,
            row_length=row_length,
            warmup_iterations=-(-self.learning_starts // (num_envs * unroll_length)),
        )


@dataclasses.dataclass(frozen=True)
class BufferSizes:
    """What `SACConfig.sizes` worked out."""

    rows: int  # environments in a group
    row_length: int  # steps kept of each
    warmup_iterations: int  # before the first gradient step
