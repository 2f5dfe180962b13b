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

from jaxagent.planning.guidance import Guidance, GuidanceState
from jaxagent.rollout import collect
from jaxagent.training.devices import AXIS, Layout
from jaxagent.training.episodes import episode_metrics
from jaxagent.training.nonfinite import keep_stopped
from jaxagent.types import Env, EnvState, EnvStep, SimulatorState, Trajectory

# What a run's own key is folded with, beside the numbers of its iterations: 2^31 - 1 and below.
WARM_START, REWRITE = 2**31 - 1, 2**31 - 2
COMPILED_AT_ONCE = 2  # programs; the compiler holds up to a gigabyte and a half for each


class SeedKeys(NamedTuple):
    """The streams of one seed. A key is split, folded or consumed: one of these, once."""

    agent: PRNGKeyArray
    environments: PRNGKeyArray
    run: PRNGKeyArray
    evaluation: PRNGKeyArray


def seed_keys(seed: Int[Array, ""]) -> SeedKeys:
    """All that is drawn from a seed, apart from each other."""
    return SeedKeys(*jax.random.split(jax.random.key(seed), len(SeedKeys._fields)))


class TrainState(struct.PyTreeNode, kw_only=True):
    """Everything a run needs to go on; what a checkpoint holds."""

    agent: Any  # what the agent learns and counts, PPOState for example
    env: EnvState
    guidance: GuidanceState | None  # None where the reward is the environment's alone
    key: PRNGKeyArray
    iteration: Int[Array, ""]
    replay: Any = None  # None where the agent learns from fresh experience only


class GoalEvaluation(NamedTuple):
    """What E episodes of a goal-conditioned task came to."""

    goal: Float[Array, "S E G"]  # the first of each episode
    fell: Bool[Array, "S E"]  # ended by the body, not by success and not by time
    touched: Bool[Array, "S E"]  # a success at any step
    steps_to_success: Int[Array, "S E"]  # of the first; 0 where there was none
    final_distance: Float[Array, "S E"]  # from the goal, after the last step


class Evaluation(NamedTuple):
    """E episodes of each of S seeds, acted deterministically and rewarded without guidance."""

    episode_return: Float[Array, "S E"]
    episode_length: Int[Array, "S E"]
    success: Bool[Array, "S E"]  # at the episode's end (`GoalOutcome.success` of goal tasks)
    path: Float[Array, "S E L 2"]  # of the body, or of the achieved goal where that is a point of
    # the plane, metres; rows after an episode's end repeat its last
    pose: Float[Array, "S D L Q"]  # of the first episode on each device, for rendering
    goals: GoalEvaluation | None = None  # None where the task has no goal space


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Environments, agent and guidance bound to a device layout.

    Attributes:
        env: training environments.
        evaluation_env: the same task, laid out for the evaluation's number of episodes.
        pose: reads what a renderer needs off an environment's state.
        agent: what learns.
        guidance: what it is rewarded by; None is the environment's reward alone.
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
    agent: Any
    guidance: Guidance | None
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
        with ThreadPoolExecutor(COMPILED_AT_ONCE) as pool:
            compiled = list(pool.map(lambda program: program.compile(), lowered))
        iterate, evaluate = compiled
        seconds = time.perf_counter() - begin
        if self.guidance is None:
            return Programs(iterate, evaluate, lambda guidance, returns: guidance, seconds)
        observe = jax.jit(
            jax.vmap(self.guidance.observe_evaluation),
            out_shardings=self._placed(self.specs().guidance),
        )
        return Programs(iterate, evaluate, observe, seconds)

    def compile_change_plan(self) -> Callable[[Any, Any, Float[Array, "S B 2"]], Any]:
        """What gives a guidance state another plan, the same for all seeds.

        Raises:
            ValueError: the plan is compiled in.
        """
        if self.guidance is None or self.guidance.plan_capacity is None:
            raise ValueError("a plan that is compiled in cannot be changed: give plan_capacity")
        return jax.jit(
            jax.vmap(self.guidance.change_plan, in_axes=(0, None, 0)),
            out_shardings=self._placed(self.specs().guidance),
        )

    def compile_evaluation(
        self, state: TrainState
    ) -> Callable[[Any, Int[Array, " S"]], Evaluation]:
        """Compile the evaluation alone, for a run that is only looked at."""
        return self._lower_evaluate(state).compile()

    def _lower_iterate(self, state: TrainState):
        specs = self.specs()
        program = self._over_devices(self._iterate, (specs,), (specs, _replicated()))
        return jax.jit(program, donate_argnums=0).lower(state)

    def _lower_evaluate(self, state: TrainState):
        out = Evaluation(*[sharded()] * len(Evaluation._fields))
        program = self._over_devices(self._evaluate, (_replicated(), _replicated()), out)
        seeds = np.zeros(state.iteration.shape, np.int32)
        return jax.jit(program).lower(state.agent, self.replicate(seeds))

    def replicate(self, array: np.ndarray) -> jax.Array:
        """Put the same array on every device of every process."""
        return jax.make_array_from_process_local_data(self._placed(_replicated()), array)

    def specs(self) -> TrainState:
        """Which parts of the state are cut over devices: those of environments."""
        one = _replicated()
        guidance = None
        if self.guidance is not None:
            guidance = GuidanceState(
                cursor=sharded(),
                episode=sharded(),
                fresh=sharded(),
                potential=sharded(),
                moments=one,
                adaptive=one,
                switch=one,  # type: ignore[arg-type]
                plan=None if self.guidance.plan_capacity is None else one,
            )
        return TrainState(
            agent=one,
            env=sharded(),  # type: ignore[arg-type]
            guidance=guidance,
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
        keys = seed_keys(seed)
        return TrainState(
            agent=self.agent.init(keys.agent),
            env=self.env.reset(self._streams(keys.environments, self.num_envs)),
            guidance=self.guidance and self.guidance.init(self.num_envs // self.layout.size),
            key=keys.run,
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
        guidance, reward, guidance_metrics = self._reward(state, trajectory)
        updated = self.agent.update(state.agent, trajectory, reward, update_key)
        agent, agent_metrics = keep_stopped(state.agent, *updated)
        metrics = episode_metrics(trajectory) | guidance_metrics | agent_metrics
        state = state.replace(
            agent=agent, env=env, guidance=guidance, iteration=state.iteration + 1
        )
        return state, metrics

    def _reward(self, state: TrainState, trajectory: Trajectory):
        if self.guidance is None or state.guidance is None:
            mean = jax.lax.pmean(trajectory.reward.mean(), AXIS)
            return None, trajectory.reward, {"reward_env": mean}
        fraction = state.iteration.astype(jnp.float32) / self.num_iterations
        return self.guidance.reward(state.guidance, trajectory, fraction)

    def _evaluate(self, agent: Any, seed: Int[Array, ""]) -> Evaluation:
        """Play E episodes to their first end."""
        env, length = self.evaluation_env, self.evaluation_length
        state = env.reset(self._streams(seed_keys(seed).evaluation, self.evaluation_episodes))
        count = state.elapsed.shape[0]
        first = jax.tree.map(lambda x: x[0], state.simulator)
        record = Evaluation(
            episode_return=jnp.zeros(count),
            episode_length=jnp.zeros(count, jnp.int32),
            success=jnp.zeros(count, bool),
            path=jnp.broadcast_to(_place(state.simulator)[None], (length, count, 2)),
            pose=jnp.zeros((length, 1, *jax.eval_shape(self.pose, first).shape)),
            goals=_begin_goals(state),
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
                _place(step),
                record.path[jnp.maximum(time - 1, 0)],
            )
            record = Evaluation(
                episode_return=record.episode_return + jnp.where(alive, step.reward, 0.0),
                episode_length=record.episode_length + alive,
                success=jnp.where(alive, _success(step), record.success),
                path=record.path.at[time].set(here),
                pose=record.pose.at[time, 0].set(
                    jnp.where(alive[0], pose, record.pose[time - 1, 0])
                ),
                goals=_follow_goals(record.goals, step, alive),
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
    evaluate: Callable[[Any, Int[Array, " S"]], Evaluation]
    observe_evaluation: Callable[[Any, Float[Array, " S"]], Any]
    compile_seconds: float


def _replicated() -> Any:
    return PartitionSpec()


def sharded() -> Any:
    """Cut over devices along the axis of environments or of their groups."""
    return PartitionSpec(None, AXIS)  # axis 0 is the seeds


def _place(moment: SimulatorState | EnvStep) -> Float[Array, "B 2"]:
    """Where a picture of the path draws a state, or a step's successor."""
    if isinstance(moment, EnvStep):
        achieved, body = moment.next_achieved_goal, moment.next_body
    else:
        achieved, body = moment.achieved_goal, moment.body
    return body.position[:, :2] if achieved is None or achieved.shape[-1] != 2 else achieved


def _begin_goals(state: EnvState) -> GoalEvaluation | None:
    goal, outcome = state.simulator.goal, state.simulator.outcome
    if goal is None or outcome is None:
        return None
    no = jnp.zeros(goal.shape[0], bool)
    return GoalEvaluation(
        goal=goal,
        fell=no,
        touched=no,
        steps_to_success=outcome.steps_to_success,
        final_distance=outcome.distance,
    )


def _follow_goals(
    record: GoalEvaluation | None, step: EnvStep, alive: Bool[Array, " B"]
) -> GoalEvaluation | None:
    if record is None or step.outcome is None:
        return None
    now = GoalEvaluation(
        goal=record.goal,
        fell=step.terminated & ~step.success,
        touched=record.touched | step.success,
        steps_to_success=step.outcome.steps_to_success,
        final_distance=step.outcome.distance,
    )
    return GoalEvaluation(
        *(
            jnp.where(alive.reshape(alive.shape + (1,) * (new.ndim - 1)), new, old)
            for new, old in zip(now, record)
        )
    )


def _success(step: EnvStep) -> Bool[Array, " B"]:
    """Of the episodes that end with this step."""
    return step.success if step.outcome is None else step.outcome.success > 0.5
