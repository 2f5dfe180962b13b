"""The two compiled programs of a run: one training iteration, one evaluation.

Both run under `shard_map` over the device mesh, each device on its own share of the environments,
and hold a leading axis of seeds: `[S, ...]`. What comes out does not depend on the number of
devices: every environment draws from its own keys, and gradients are averaged.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from jaxagent.agents.ppo import PPO, PPOState
from jaxagent.planning.guidance import Guidance, GuidanceState
from jaxagent.rollout import collect
from jaxagent.training.devices import AXIS, Layout
from jaxagent.types import Env, EnvState, Trajectory


class TrainState(struct.PyTreeNode, kw_only=True):
    """Everything a run needs to go on; what a checkpoint holds."""

    agent: PPOState
    env: EnvState
    guidance: GuidanceState
    key: PRNGKeyArray
    iteration: Int[Array, ""]


class Evaluation(NamedTuple):
    """E episodes of each of S seeds, acted deterministically and rewarded without guidance."""

    episode_return: Float[Array, "S E"]
    episode_length: Int[Array, "S E"]
    success: Bool[Array, "S E"]
    path: Float[Array, "S E L 2"]  # metres; rows after an episode's end repeat its last
    pose: Float[Array, "S D L Q"]  # of the first episode on each device, for rendering


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Environments, agent and guidance bound to a device layout.

    Attributes:
        env: training environments.
        evaluation_env: the same task, laid out for the evaluation's number of episodes.
        pose: reads what a renderer needs off an environment's state.
        agent: what learns.
        guidance: what it is rewarded by.
        layout: devices.
        num_envs: B, over all devices.
        unroll_length: T, steps of every environment in one iteration.
        num_iterations: in the whole training.
        evaluation_episodes: E of each seed.
        evaluation_length: L, the task's time limit.
    """

    env: Env
    evaluation_env: Env
    pose: Callable
    agent: PPO
    guidance: Guidance
    layout: Layout
    num_envs: int
    unroll_length: int
    num_iterations: int
    evaluation_episodes: int
    evaluation_length: int

    def init(self, seeds: Sequence[int]) -> TrainState:
        """Fresh states, one for each seed."""
        return self._compile_init()(self.replicate(np.array(seeds, np.int32)))

    def compile(self, state: TrainState) -> "Programs":
        """Compile both programs, side by side.

        Args:
            state: only shapes and placement are read.
        """
        begin = time.perf_counter()
        lowered = (self._lower_iterate(state), self._lower_evaluate(state))
        with ThreadPoolExecutor(len(lowered)) as pool:
            compiled = list(pool.map(lambda program: program.compile(), lowered))
        observe = jax.jit(
            jax.vmap(self.guidance.observe_evaluation),
            out_shardings=self._placed(self.specs().guidance),
        )
        iterate, evaluate = compiled
        return Programs(iterate, evaluate, observe, time.perf_counter() - begin)

    def compile_evaluation(
        self, state: TrainState
    ) -> Callable[[PPOState, Int[Array, " S"]], Evaluation]:
        """Compile the evaluation alone, for a run that is only looked at."""
        return self._lower_evaluate(state).compile()

    def _lower_iterate(self, state: TrainState):
        specs = self.specs()
        program = self._over_devices(self._iterate, (specs,), (specs, _replicated()))
        return jax.jit(program, donate_argnums=0).lower(state)

    def _lower_evaluate(self, state: TrainState):
        out = Evaluation(*[_sharded()] * len(Evaluation._fields))
        program = self._over_devices(self._evaluate, (_replicated(), _replicated()), out)
        seeds = np.zeros(state.iteration.shape, np.int32)
        return jax.jit(program).lower(state.agent, self.replicate(seeds))

    def replicate(self, array: np.ndarray) -> jax.Array:
        """Put the same array on every device of every process."""
        return jax.make_array_from_process_local_data(self._placed(_replicated()), array)

    def specs(self) -> TrainState:
        """Which parts of the state are cut over devices: those of environments."""
        one = _replicated()
        return TrainState(
            agent=one,  # type: ignore[arg-type]
            env=_sharded(),  # type: ignore[arg-type]
            guidance=GuidanceState(
                cursor=_sharded(),
                moments=one,
                adaptive=one,
                switch=one,  # type: ignore[arg-type]
            ),
            key=one,  # type: ignore[arg-type]
            iteration=one,  # type: ignore[arg-type]
        )

    def shardings(self, state: TrainState) -> TrainState:
        """The placement of every leaf of a state, for restoring it on this mesh."""
        return jax.tree.map(
            lambda spec, part: jax.tree.map(lambda _: NamedSharding(self.layout.mesh, spec), part),
            self.specs(),
            state,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )

    def abstract_state(self, num_seeds: int) -> TrainState:
        """Shapes and types of a state, without computing one."""
        seeds = jax.ShapeDtypeStruct((num_seeds,), jnp.int32)
        return jax.eval_shape(self._compile_init(), seeds)

    def _compile_init(self):
        function = self._over_devices(self._init, (_replicated(),), self.specs())
        return jax.jit(function, out_shardings=self._placed(self.specs()))

    def _placed(self, specs):
        return jax.tree.map(
            lambda spec: NamedSharding(self.layout.mesh, spec),
            specs,
            is_leaf=lambda x: isinstance(x, PartitionSpec),
        )

    def _over_devices(self, function: Callable, in_specs, out_specs):
        def over_seeds(*arguments):
            if self.layout.map_seeds:
                return jax.lax.map(lambda pair: function(*pair), arguments)
            return jax.vmap(function)(*arguments)

        return jax.shard_map(
            over_seeds,
            mesh=self.layout.mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            check_vma=False,
        )

    def _streams(self, key: PRNGKeyArray, count: int) -> PRNGKeyArray:
        """One key for each environment on this device, the same whatever the mesh."""
        local = count // self.layout.size
        index = jax.lax.axis_index(AXIS) * local + jnp.arange(local)
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, index)

    def _init(self, seed: Int[Array, ""]) -> TrainState:
        agent_key, env_key, run_key = jax.random.split(jax.random.key(seed), 3)
        return TrainState(
            agent=self.agent.init(agent_key),
            env=self.env.reset(self._streams(env_key, self.num_envs)),
            guidance=self.guidance.init(self.num_envs // self.layout.size),
            key=run_key,
            iteration=jnp.zeros((), jnp.int32),
        )

    def _iterate(self, state: TrainState) -> tuple[TrainState, dict[str, Float[Array, ""]]]:
        """Collect, guide, learn."""
        act_key, update_key = jax.random.split(jax.random.fold_in(state.key, state.iteration))
        env, trajectory = collect(
            self.env,
            partial(self.agent.act, state.agent),
            state.env,
            self._streams(act_key, self.num_envs),
            self.unroll_length,
        )
        fraction = state.iteration.astype(jnp.float32) / self.num_iterations
        guidance, reward, guidance_metrics = self.guidance.reward(
            state.guidance, trajectory, fraction
        )
        agent, agent_metrics = self.agent.update(state.agent, trajectory, reward, update_key)
        metrics = _episode_metrics(trajectory) | guidance_metrics | agent_metrics
        state = state.replace(
            agent=agent, env=env, guidance=guidance, iteration=state.iteration + 1
        )
        return state, metrics

    def _evaluate(self, agent: PPOState, seed: Int[Array, ""]) -> Evaluation:
        """Play E episodes to their first end."""
        env, length = self.evaluation_env, self.evaluation_length
        state = env.reset(self._streams(jax.random.key(seed), self.evaluation_episodes))
        count = state.elapsed.shape[0]
        first = jax.tree.map(lambda x: x[0], state.simulator)
        record = Evaluation(
            episode_return=jnp.zeros(count),
            episode_length=jnp.zeros(count, jnp.int32),
            success=jnp.zeros(count, bool),
            path=jnp.broadcast_to(state.simulator.body.position[None, :, :2], (length, count, 2)),
            pose=jnp.zeros((length, 1, *jax.eval_shape(self.pose, first).shape)),
        )

        def unfinished(carry):
            time, _, alive, _ = carry
            return (time < length) & alive.any()

        def advance(carry):
            time, state, alive, record = carry
            pose = self.pose(jax.tree.map(lambda x: x[0], state.simulator))
            loc, _ = self.agent.distribution(agent, state.simulator.observation)
            state, step = env.step(state, jnp.tanh(loc))
            here = jnp.where(
                alive[:, None],
                step.next_body.position[:, :2],
                record.path[jnp.maximum(time - 1, 0)],
            )
            record = Evaluation(
                episode_return=record.episode_return + jnp.where(alive, step.reward, 0.0),
                episode_length=record.episode_length + alive,
                success=record.success | (alive & step.success),
                path=record.path.at[time].set(here),
                pose=record.pose.at[time, 0].set(
                    jnp.where(alive[0], pose, record.pose[time - 1, 0])
                ),
            )
            return time + 1, state, alive & ~(step.terminated | step.truncated), record

        start = (jnp.zeros((), jnp.int32), state, jnp.ones(count, bool), record)
        time, _, _, record = jax.lax.while_loop(unfinished, advance, start)
        row = jnp.minimum(jnp.arange(length), time - 1)  # nothing was written after the last end
        return record._replace(
            path=record.path[row].swapaxes(0, 1), pose=record.pose[row].swapaxes(0, 1)
        )


class Programs(NamedTuple):
    """What `Trainer.compile` made."""

    iterate: Callable[[TrainState], tuple[TrainState, dict[str, Float[Array, " S"]]]]
    evaluate: Callable[[PPOState, Int[Array, " S"]], Evaluation]
    observe_evaluation: Callable[[GuidanceState, Float[Array, " S"]], GuidanceState]
    compile_seconds: float


def _replicated() -> Any:
    return PartitionSpec()


def _sharded() -> Any:
    return PartitionSpec(None, AXIS)  # axis 0 is the seeds


def _episode_metrics(trajectory: Trajectory) -> dict[str, Float[Array, ""]]:
    """Means over the episodes that ended in this batch; 0 where none did."""
    ended = trajectory.episode_end
    sums = {
        "episodes": ended.sum(),
        "episode_return": jnp.where(ended, trajectory.episode_return, 0.0).sum(),
        "episode_length": jnp.where(ended, trajectory.episode_length, 0).sum(),
        "episode_success": (ended & trajectory.success).sum(),
    }
    sums = jax.tree.map(lambda x: jax.lax.psum(x.astype(jnp.float32), AXIS), sums)
    episodes = sums.pop("episodes")
    means = {name: value / jnp.maximum(episodes, 1.0) for name, value in sums.items()}
    return means | {"episodes": episodes}
