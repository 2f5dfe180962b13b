"""Goal-conditioned critics: V(s, g), and an ensemble of Q(s, a, g)."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.models.networks import MLP
from jaxagent.models.skill_policy import encode


class SkillValue(nn.Module):
    """V(s, g); attributes as in `SkillPolicy`."""

    goal_features: int
    encoder_sizes: Sequence[int] = (256,)
    hidden_sizes: Sequence[int] = (512, 512)
    activation: str = "swish"

    @nn.compact
    def __call__(self, observation: Float[Array, "*B O"]) -> Float[Array, "*B"]:
        """The value, in scaled reward units."""
        x = encode(observation, self.goal_features, self.encoder_sizes, self.activation)
        x = MLP(self.hidden_sizes, self.activation)(x)
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]


class ActionValue(nn.Module):
    """Q(s, a, g) of one critic; attributes as in `SkillPolicy`."""

    goal_features: int
    encoder_sizes: Sequence[int] = (256,)
    hidden_sizes: Sequence[int] = (512, 512)
    activation: str = "relu"

    @nn.compact
    def __call__(
        self, observation: Float[Array, "*B O"], action: Float[Array, "*B A"]
    ) -> Float[Array, "*B"]:
        """The action value, in scaled reward units."""
        x = encode(observation, self.goal_features, self.encoder_sizes, self.activation)
        x = MLP(self.hidden_sizes, self.activation)(jnp.concatenate([x, action], axis=-1))
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]


class CriticEnsemble(nn.Module):
    """K independent action values, stacked.

    Attributes:
        num_critics: K; two are the twin critics of Fujimoto et al. 2018.
    """

    num_critics: int
    goal_features: int
    encoder_sizes: Sequence[int] = (256,)
    hidden_sizes: Sequence[int] = (512, 512)
    activation: str = "relu"

    @nn.compact
    def __call__(
        self, observation: Float[Array, "*B O"], action: Float[Array, "*B A"]
    ) -> Float[Array, "K *B"]:
        """Every critic's action value."""
        # One after the other, not nn.vmap: on a CPU batched matrix products are slower, and two
        # devices that factorise batches of matrices for their initialisation wait for each other.
        sizes = self.goal_features, self.encoder_sizes, self.hidden_sizes, self.activation
        critics = [ActionValue(*sizes, name=f"critic_{k}") for k in range(self.num_critics)]
        return jnp.stack([critic(observation, action) for critic in critics])
