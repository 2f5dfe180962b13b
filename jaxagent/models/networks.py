"""Policy and critic networks."""

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

ACTIVATIONS: dict[str, Callable] = {
    "tanh": nn.tanh,
    "relu": nn.relu,
    "swish": nn.swish,
    "elu": nn.elu,
}


class MLP(nn.Module):
    """Dense layers with an activation after each; the output layer is the caller's."""

    hidden_sizes: Sequence[int]
    activation: str

    @nn.compact
    def __call__(self, x: Float[Array, "*B I"]) -> Float[Array, "*B H"]:
        """Features of the last hidden layer."""
        for size in self.hidden_sizes:
            x = nn.Dense(size, kernel_init=nn.initializers.orthogonal(jnp.sqrt(2.0)))(x)
            x = ACTIVATIONS[self.activation](x)
        return x


class TanhNormalPolicy(nn.Module):
    """Location and scale of a normal distribution that is squashed by tanh.

    The scale does not depend on the state: exploration then shrinks everywhere at one rate, and
    no region of the state space can collapse early.

    Attributes:
        initial_scale: standard deviation before squashing at the start of training.
        minimum_scale: floor of the standard deviation; keeps ratios and KL finite.
    """

    action_size: int
    hidden_sizes: Sequence[int] = (64, 64)
    activation: str = "swish"
    initial_scale: float = 0.5
    minimum_scale: float = 0.02

    @nn.compact
    def __call__(
        self, observation: Float[Array, "*B O"]
    ) -> tuple[Float[Array, "*B A"], Float[Array, "*B A"]]:
        """(loc, scale) of the normal before tanh."""
        x = MLP(self.hidden_sizes, self.activation)(observation)
        loc = nn.Dense(self.action_size, kernel_init=nn.initializers.orthogonal(0.01))(x)
        log_scale = self.param(
            "log_scale",
            nn.initializers.constant(jnp.log(self.initial_scale)),
            (self.action_size,),
        )
        scale = jnp.exp(log_scale) + self.minimum_scale
        return loc, jnp.broadcast_to(scale, loc.shape)


class ValueCritic(nn.Module):
    """V(s)."""

    hidden_sizes: Sequence[int] = (256, 256)
    activation: str = "swish"

    @nn.compact
    def __call__(self, observation: Float[Array, "*B O"]) -> Float[Array, "*B"]:
        """The value, in scaled reward units."""
        x = MLP(self.hidden_sizes, self.activation)(observation)
        return nn.Dense(1, kernel_init=nn.initializers.orthogonal(1.0))(x)[..., 0]
