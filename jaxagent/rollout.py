"""Play a policy in a batch of environments."""

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxagent.types import Env, EnvState, Policy, Trajectory


def collect(
    env: Env, policy: Policy, state: EnvState, keys: PRNGKeyArray, length: int
) -> tuple[EnvState, Trajectory]:
    """T steps of every environment.

    Each environment draws its action noise from its own key, so a batch plays the same episodes
    however it is cut over devices.

    Args:
        env: the environments.
        policy: what acts.
        state: where the episodes stand.
        keys: [B], consumed.
        length: T.

    Returns:
        Where the episodes stand afterwards, and the time-major trajectory.
    """

    def advance(state: EnvState, time):
        before = state.simulator
        noise = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, time)
        sample = policy(before.observation, noise)
        state, step = env.step(state, sample.action)
        return state, Trajectory(
            observation=before.observation,
            action=sample.action,
            pre_tanh=sample.pre_tanh,
            behaviour_log_prob=sample.log_prob,
            reward=step.reward,
            terminated=step.terminated,
            truncated=step.truncated,
            success=step.success,
            next_observation=step.next_observation,
            body=before.body,
            next_body=step.next_body,
            episode_return=step.episode_return,
            episode_length=step.episode_length,
            goal=before.goal,
            achieved_goal=before.achieved_goal,
            next_achieved_goal=step.next_achieved_goal,
            features=before.features,
            next_features=step.next_features,
            outcome=step.outcome,
        )

    return jax.lax.scan(advance, state, jnp.arange(length))
