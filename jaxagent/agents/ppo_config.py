"""Hyper-parameters of PPO, checked when they are made."""

import dataclasses

from jaxagent.models.networks import ACTIVATIONS

SCHEDULES = ("constant", "linear", "warmup_cosine")


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """Hyper-parameters of PPO."""

    policy_learning_rate: float = 1e-3
    """Peak step size of the policy's Adam."""
    critic_learning_rate: float = 1e-3
    """Peak step size of the critic's Adam."""
    learning_rate_schedule: str = "linear"
    """constant, linear (to 0) or warmup_cosine (up over the first 5 %, then to 0)."""
    discount_factor: float = 0.97
    """gamma, per environment step."""
    gae_lambda: float = 0.95
    """lambda of generalised advantage estimation, in [0, 1]."""
    reward_scale: float = 0.1
    """Rewards are multiplied by this before learning; it keeps values near 1."""
    num_epochs: int = 4
    """Passes over each batch of experience."""
    num_minibatches: int = 8
    """Gradient steps in one pass."""
    shuffle_groups: int = 8
    """Experience is shuffled within this many groups of environments, so that the result does
    not depend on the number of devices, which must divide it."""
    clip_epsilon: float = 0.2
    """Half-width of the trust interval of the probability ratio."""
    value_clip_epsilon: float | None = None
    """Half-width of the value clip, in scaled reward units; None does not clip."""
    entropy_cost: float = 1e-3
    """Weight of the entropy bonus."""
    value_cost: float = 0.5
    """Weight of the value error."""
    max_gradient_norm: float = 1.0
    """Gradients are clipped to this global norm, policy and critic apart."""
    target_kl: float | None = None
    """Stop the epochs of an iteration once KL(old, new) exceeds this, in nats; None never does."""
    distill_cost: float = 1.0
    """Weight of KL(student, teacher) when a teacher is given."""
    policy_hidden_sizes: tuple[int, ...] = (64, 64)
    """Width of each hidden layer of the policy."""
    critic_hidden_sizes: tuple[int, ...] = (256, 256)
    """Width of each hidden layer of the critic."""
    activation: str = "swish"
    """tanh, relu, swish or elu."""
    initial_scale: float = 0.5
    """Standard deviation of the first policy's actions, before tanh."""
    normalise_observations: bool = True
    """Centre and scale observations by their running statistics."""

    def __post_init__(self):
        for name in ("discount_factor", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must lie in [0, 1]")
        positive = ("policy_learning_rate", "critic_learning_rate", "reward_scale", "clip_epsilon")
        positive += ("max_gradient_norm", "initial_scale", "value_clip_epsilon", "target_kl")
        for name in positive:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} ({value}) must be a positive, finite number")
        for name in ("entropy_cost", "value_cost", "distill_cost"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 0 and finite")
        for name in ("num_epochs", "num_minibatches", "shuffle_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        for name in ("policy_hidden_sizes", "critic_hidden_sizes"):
            if any(size < 1 for size in getattr(self, name)):
                raise ValueError(f"{name} {getattr(self, name)} must be positive widths")
        _require_choice("activation", self.activation, tuple(ACTIVATIONS))
        _require_choice("learning_rate_schedule", self.learning_rate_schedule, SCHEDULES)

    def check_batch(self, num_envs: int, unroll_length: int) -> None:
        """Refuse a batch that cannot be cut into groups and minibatches.

        Raises:
            ValueError: it cannot.
        """
        groups, minibatches = self.shuffle_groups, self.num_minibatches
        if num_envs % groups:
            raise ValueError(
                f"num_envs ({num_envs}) must be divisible by shuffle_groups ({groups})"
            )
        if num_envs * unroll_length % (groups * minibatches):
            raise ValueError(
                f"num_envs * unroll_length ({num_envs} * {unroll_length}) must be divisible by "
                f"shuffle_groups * num_minibatches ({groups} * {minibatches})"
            )


def _require_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} ({value}) must be one of {', '.join(known)}")
