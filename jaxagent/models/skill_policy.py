"""The goal-conditioned policy: state and goal have an encoder each."""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxagent.models.networks import MLP


class SkillPolicy(nn.Module):
    """π(a | s, g): location and scale of a normal distribution that is squashed by tanh.

    Takes what `GoalSpec.see` makes: an observation whose last entries tell the goal.

    Attributes:
        action_size: A.
        goal_features: how many of the last entries tell the goal.
        encoder_sizes: hidden layers of the state encoder, and of the goal encoder.
        hidden_sizes: layers over both codes.
        activation: a name of `networks.ACTIVATIONS`.
        initial_scale: standard deviation before squashing at the start of training.
        minimum_scale: floor of the standard deviation; keeps ratios and KL finite.
        state_dependent_scale: False lets exploration shrink everywhere at one rate, as PPO wants;
            True lets it differ from state to state, as soft actor-critic wants.
    """

    action_size: int
    goal_features: int
    encoder_sizes: Sequence[int] = (256,)
    hidden_sizes: Sequence[int] = (512, 512)
    activation: str = "swish"
    initial_scale: float = 0.5
    minimum_scale: float = 0.02
    state_dependent_scale: bool = False

    @nn.compact
    def __call__(
        self, observation: Float[Array, "*B O"]
    ) -> tuple[Float[Array, "*B A"], Float[Array, "*B A"]]:
        """(loc, scale) of the normal before tanh."""
        x = encode(observation, self.goal_features, self.encoder_sizes, self.activation)
        x = MLP(self.hidden_sizes, self.activation)(x)
        small = nn.initializers.orthogonal(0.01)
        loc = nn.Dense(self.action_size, kernel_init=small, name="loc")(x)
        start = nn.initializers.constant(jnp.log(self.initial_scale))
        if self.state_dependent_scale:
            head = nn.Dense(self.action_size, kernel_init=small, bias_init=start, name="log_scale")
            # Beyond e^2 tanh has only two outcomes, and its log-density grows without bound.
            return loc, jnp.exp(jnp.clip(head(x), -10.0, 2.0)) + self.minimum_scale
        log_scale = self.param("log_scale", start, (self.action_size,))
        scale = jnp.exp(log_scale) + self.minimum_scale
        return loc, jnp.broadcast_to(scale, loc.shape)


def encode(
    observation: Float[Array, "*B O"],
    goal_features: int,
    encoder_sizes: Sequence[int],
    activation: str,
) -> Float[Array, "*B C"]:
    """The codes of state and goal side by side; for use inside a compact module.

    Args:
        observation: its last entries tell the goal.
        goal_features: how many.
        encoder_sizes: hidden layers of either encoder.
        activation: a name of `networks.ACTIVATIONS`.
    """
    state, goal = observation[..., :-goal_features], observation[..., -goal_features:]
    state = MLP(encoder_sizes, activation, name="state_encoder")(state)
    goal = MLP(encoder_sizes, activation, name="goal_encoder")(goal)
    return jnp.concatenate([state, goal], axis=-1)
