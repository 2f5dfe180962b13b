"""The compiled iteration of an agent that learns from a replay buffer.

Initialisation, evaluation and the division over devices are those of `training.trainer`; the
buffer is part of the state, and so of every checkpoint.
"""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagent.agents.sac_her import SACHER
from jaxagent.replay import Replay, Transition, transitions
from jaxagent.rollout import collect
from jaxagent.training.devices import AXIS
from jaxagent.training.trainer import Trainer, TrainState, episode_metrics, sharded
from jaxagent.types import Trajectory


@dataclasses.dataclass(frozen=True)
class OffPolicyTrainer(Trainer):
    """Collect a few steps, then several gradient steps on what was ever collected.

    Attributes:
        replay: the buffer's functions.
        groups: of environments, over all devices; the buffer is sampled within each.
        warmup_iterations: that only collect.
    """

    agent: SACHER
    replay: Replay
    groups: int
    warmup_iterations: int

    def specs(self) -> TrainState:
        """Which parts of the state are cut over devices: environments, and the buffer's groups."""
        return super().specs().replace(replay=sharded())

    def _init(self, seed: Int[Array, ""]) -> TrainState:
        state = super()._init(seed)
        step = jax.eval_shape(self._first_step, state)
        buffer = self.replay.init(step, self.groups // self.layout.size)
        return state.replace(replay=buffer)

    def _first_step(self, state: TrainState) -> Transition:
        """One step of one environment, for its shapes."""
        _, trajectory = self._collect(state, jax.random.key(0), 1)
        return jax.tree.map(lambda x: x[0, 0], transitions(trajectory))

    def _collect(self, state: TrainState, key: PRNGKeyArray, length: int):
        def policy(observation, keys):
            return self.agent.act(state.agent, observation, keys)

        return collect(self.env, policy, state.env, self._streams(key, self.num_envs), length)

    def _iterate(self, state: TrainState) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        """Collect, remember, learn."""
        key = jax.random.fold_in(state.key, state.iteration)
        act_key, draw_key, update_key = jax.random.split(key, 3)
        env, trajectory = self._collect(state, act_key, self.unroll_length)
        buffer = self.replay.add(state.replay, transitions(trajectory))
        agent = self.agent.observe(state.agent, trajectory)

        def learn():
            batch = self.agent.draw(self.replay, buffer, self._streams(draw_key, self.groups))
            return self.agent.update(agent, batch, self._streams(update_key, self.groups))

        def wait():
            blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn)[1])
            return agent, blank

        agent, agent_metrics = jax.lax.cond(state.iteration >= self.warmup_iterations, learn, wait)
        metrics = episode_metrics(trajectory) | _reward(trajectory) | agent_metrics
        state = state.replace(agent=agent, env=env, replay=buffer, iteration=state.iteration + 1)
        return state, metrics


def _reward(trajectory: Trajectory) -> dict[str, Float[Array, ""]]:
    return {"reward_env": jax.lax.pmean(trajectory.reward.mean(), AXIS)}
