"""The compiled iteration of an agent that learns from a replay buffer.

Initialisation, evaluation and the division over devices are those of `training.trainer`; the
buffer is part of the state, and so of every checkpoint.

Several devices on one CPU: XLA runs all of them from one pool of threads. A device that waits in a
collective keeps its thread, and an off-policy iteration alternates collectives with matrix
products that want threads too; with one thread a core, every thread can come to wait for work
that has none left to run on, and the program stands still for ever. `prepare_cpu_devices(
spare_threads=True)` gives four threads a core, before JAX starts; with them 12,800 gradient steps
on two devices, up to eight iterations in flight, ran through without a stop, which is evidence and
no proof. Whoever builds this trainer in a process of their own calls it first, or stays on one
device (`num_devices=1`). Accelerators and several processes of one CPU device each share no pool.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.agents.sac_her import SACHER
from jaxagent.replay import Replay, Transition, transitions
from jaxagent.rollout import collect
from jaxagent.training.devices import AXIS
from jaxagent.training.episodes import episode_metrics
from jaxagent.training.nonfinite import keep_stopped
from jaxagent.training.trainer import REWRITE, Trainer, TrainState, sharded
from jaxagent.types import Trajectory

# (key, contents of one group [rows, L, ...], which of the steps were written [L]) -> (the contents
# as they shall be, counts that are summed over groups).
Rewriting = Callable[
    [PRNGKeyArray, Transition, Bool[Array, " L"]],
    tuple[Transition, dict[str, Float[Array, ""]]],
]


@dataclasses.dataclass(frozen=True)
class OffPolicyTrainer(Trainer):
    """Collect a few steps, then several gradient steps on what was ever collected.

    Attributes:
        replay: the buffer's functions.
        groups: of environments, over all devices; the buffer is sampled within each.
        warmup_iterations: that only collect.
        remember: what the buffer keeps of a trajectory.
    """

    agent: SACHER
    replay: Replay
    groups: int
    warmup_iterations: int
    remember: Callable[[Trajectory], Transition] = transitions

    def specs(self) -> TrainState:
        """Which parts of the state are cut over devices: environments, and the buffer's groups."""
        return super().specs().replace(replay=sharded())

    def rewrite_replay(
        self, state: TrainState, function: Rewriting
    ) -> tuple[TrainState, dict[str, Float[Array, " S"]]]:
        """The state with what its buffer holds rewritten, one group after the other.

        Args:
            state: on the devices of the run; its own keys are used, not used up.
            function: what to make of each group.

        Returns:
            The state, with nothing else changed; and the counts, summed over groups.
        """

        def one_seed(buffer: Any, key: PRNGKeyArray):
            keys = self._streams(jax.random.fold_in(key, REWRITE), self.groups)
            contents, written = self.replay.contents(buffer)
            contents, counts = jax.lax.map(
                lambda group: function(*group), (keys, contents, written)
            )
            total = jax.tree.map(lambda x: jax.lax.psum(x.sum(0), AXIS), counts)
            return self.replay.with_contents(buffer, contents), total

        specs = (sharded(), PartitionSpec())
        program = jax.jit(self._over_devices(one_seed, specs, specs))
        buffer, counts = program(state.replay, state.key)
        return state.replace(replay=buffer), counts

    def _init(self, seed: Int[Array, ""]) -> TrainState:
        state = super()._init(seed)
        step = jax.eval_shape(self._first_step, state)
        buffer = self.replay.init(step, self.groups // self.layout.size)
        return state.replace(replay=buffer)

    def _first_step(self, state: TrainState) -> Transition:
        """One step of one environment, for its shapes."""
        _, trajectory = self._collect(state, jax.random.key(0), 1)
        return jax.tree.map(lambda x: x[0, 0], self.remember(trajectory))

    def _collect(self, state: TrainState, key: PRNGKeyArray, length: int):
        def policy(observation, keys):
            return self.agent.act(state.agent, observation, keys)

        return collect(self.env, policy, state.env, self._streams(key, self.num_envs), length)

    def _iterate(self, state: TrainState) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        """Collect, remember, learn."""
        key = jax.random.fold_in(state.key, state.iteration)
        act_key, draw_key, update_key = jax.random.split(key, 3)
        env, trajectory = self._collect(state, act_key, self.unroll_length)
        buffer = self.replay.add(state.replay, self.remember(trajectory))
        agent = self.agent.observe(state.agent, trajectory)

        def learn():
            batch = self.agent.draw(self.replay, buffer, self._streams(draw_key, self.groups))
            return self.agent.update(agent, batch, self._streams(update_key, self.groups))

        def wait():
            blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(learn)[1])
            return agent, blank

        updated = jax.lax.cond(state.iteration >= self.warmup_iterations, learn, wait)
        agent, agent_metrics = keep_stopped(state.agent, *updated)
        metrics = episode_metrics(trajectory) | _reward(trajectory) | agent_metrics
        state = state.replace(agent=agent, env=env, replay=buffer, iteration=state.iteration + 1)
        return state, metrics


def _reward(trajectory: Trajectory) -> dict[str, Float[Array, ""]]:
    return {"reward_env": jax.lax.pmean(trajectory.reward.mean(), AXIS)}
