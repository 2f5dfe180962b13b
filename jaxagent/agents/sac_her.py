"""Soft actor-critic with hindsight experience replay as a pure agent: init, act, update."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagent.agents.hindsight import SoftBatch, in_hindsight
from jaxagent.agents.ppo import Distribution
from jaxagent.agents.sac_config import SACConfig
from jaxagent.losses import (
    critic_error,
    soft_actor_loss,
    soft_target,
    tanh_normal_log_prob,
    tanh_normal_sample,
    temperature_loss,
)
from jaxagent.models.critics import CriticEnsemble
from jaxagent.models.normaliser import Normaliser, init_normaliser, normalise, update_normaliser
from jaxagent.models.skill_policy import SkillPolicy
from jaxagent.replay import Replay
from jaxagent.types import GoalSpec, PolicySample, Trajectory


class SACState(struct.PyTreeNode, kw_only=True):
    """Everything soft actor-critic learns and counts."""

    policy_params: Any
    critic_params: Any
    target_critic_params: Any
    log_temperature: Float[Array, ""]
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    temperature_optimiser: optax.OptState
    normaliser: Normaliser
    nonfinite_updates: Int[Array, ""]  # gradient steps that had to be dropped
    nonfinite_in_a_row: Int[Array, ""]  # the last iterations that dropped one, without a clean one


class SACHER:
    """Soft actor-critic (Haarnoja et al. 2018b) on goals chosen in hindsight.

    The methods are pure functions of the state; the object holds only what never changes.
    """

    def __init__(
        self,
        config: SACConfig,
        spec: GoalSpec,
        *,
        observation_size: int,
        action_size: int,
        encoder_sizes: tuple[int, ...] = (64,),
        axis_name: str | None = None,
    ):
        """Bind networks and optimisers.

        Args:
            config: hyper-parameters.
            spec: the goal space that is trained on; falls are charged by the discount factor.
            observation_size: O.
            action_size: A.
            encoder_sizes: hidden layers of the encoders of state and goal.
            axis_name: mapped device axis over which gradients and statistics are averaged.
        """
        self.config, self.axis_name = config, axis_name
        self.spec = spec.charged(config.discount_factor)
        self.observation_size, self.action_size = observation_size, action_size
        entropy = config.target_entropy
        self.target_entropy = -float(action_size) if entropy is None else entropy
        self.policy = SkillPolicy(
            action_size=action_size,
            goal_features=spec.goal_features,
            encoder_sizes=encoder_sizes,
            hidden_sizes=config.policy_hidden_sizes,
            activation=config.activation,
            initial_scale=1.0,
            state_dependent_scale=True,
        )
        self.critics = CriticEnsemble(
            num_critics=config.num_critics,
            goal_features=spec.goal_features,
            encoder_sizes=encoder_sizes,
            hidden_sizes=config.critic_hidden_sizes,
            activation=config.activation,
        )
        clip = optax.clip_by_global_norm(config.max_gradient_norm)
        self.policy_optimiser = optax.chain(clip, optax.adam(config.actor_learning_rate))
        self.critic_optimiser = optax.chain(clip, optax.adam(config.critic_learning_rate))
        self.temperature_optimiser = optax.adam(config.temperature_learning_rate)

    def init(self, key: PRNGKeyArray) -> SACState:
        """Fresh parameters, optimisers and statistics; the targets equal the critics."""
        policy_key, critic_key = jax.random.split(key)
        observation = jnp.zeros((1, self.observation_size))
        policy_params = self.policy.init(policy_key, observation)
        critic_params = self.critics.init(critic_key, observation, jnp.zeros((1, self.action_size)))
        log_temperature = jnp.log(jnp.full((), self.config.initial_temperature, jnp.float32))
        return SACState(
            policy_params=policy_params,
            critic_params=critic_params,
            target_critic_params=critic_params,
            log_temperature=log_temperature,
            policy_optimiser=self.policy_optimiser.init(policy_params),
            critic_optimiser=self.critic_optimiser.init(critic_params),
            temperature_optimiser=self.temperature_optimiser.init(log_temperature),
            normaliser=init_normaliser(self.observation_size),
            nonfinite_updates=jnp.zeros((), jnp.int32),
            nonfinite_in_a_row=jnp.zeros((), jnp.int32),
        )

    def distribution(self, state: SACState, observation: Float[Array, "*S O"]) -> Distribution:
        """(loc, scale) of the action before tanh; tanh(loc) is the deterministic action."""
        return self._distribution(state.policy_params, self._see(state, observation))

    def act(
        self, state: SACState, observation: Float[Array, "B O"], keys: PRNGKeyArray
    ) -> PolicySample:
        """Sample one action for each observation, each from its own key of [B]."""
        loc, scale = self.distribution(state, observation)
        action, pre_tanh = jax.vmap(tanh_normal_sample)(keys, loc, scale)
        return PolicySample(action, pre_tanh, tanh_normal_log_prob(pre_tanh, loc, scale))

    def observe(self, state: SACState, trajectory: Trajectory) -> SACState:
        """Count fresh experience into the observation statistics."""
        statistics = update_normaliser(state.normaliser, trajectory.observation, self.axis_name)
        return state.replace(normaliser=statistics)

    def draw(self, replay: Replay, buffer: Any, keys: PRNGKeyArray) -> SoftBatch:
        """All experience of one iteration's gradient steps, relabelled.

        Args:
            replay: how the buffer is sampled.
            buffer: this device's groups.
            keys: one for each group, consumed.

        Returns:
            [updates_per_iteration, groups, transitions, ...]; every transition is drawn
            independently, uniformly from the steps of its group.
        """
        config = self.config
        needed = config.updates_per_iteration * config.batch_size // config.sample_groups
        split = jax.vmap(jax.random.split)(keys)
        drawn = replay.sample(buffer, split[:, 0], needed)
        batch = in_hindsight(split[:, 1], replay, buffer, drawn, self.spec, config)
        updates = config.updates_per_iteration

        def by_update(x):
            x = x.reshape((x.shape[0], updates, -1) + x.shape[2:])
            return jnp.moveaxis(x, 0, 1)

        return jax.tree.map(by_update, batch)

    def update(
        self, state: SACState, batch: SoftBatch, keys: PRNGKeyArray
    ) -> tuple[SACState, dict[str, Float[Array, ""]]]:
        """All gradient steps of one iteration: critics, policy, temperature, targets, each time.

        A step that is not finite is dropped, and counted.

        Args:
            state: what was learnt so far.
            batch: [updates, groups, transitions, ...], from `draw`.
            keys: one for each group, consumed by fresh actions.

        Returns:
            The next state, and metrics averaged over gradient steps and devices.
        """
        seen = batch._replace(
            observation=self._see(state, batch.observation),
            next_observation=self._see(state, batch.next_observation),
        )

        def one(state, numbered):
            number, part = numbered
            noise = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            return self._gradient_step(state, part, noise)

        updates = batch.reward.shape[0]
        state, steps = jax.lax.scan(one, state, (jnp.arange(updates), seen))
        dropped = steps.pop("dropped")
        metrics = jax.tree.map(
            lambda x: jnp.where(dropped, 0.0, x).sum() / jnp.maximum((~dropped).sum(), 1), steps
        )
        metrics["relabelled_share"] = self._mean(batch.is_relabelled.mean())
        state = state.replace(
            nonfinite_updates=state.nonfinite_updates + dropped.sum(dtype=jnp.int32),
            nonfinite_in_a_row=jnp.where(dropped.any(), state.nonfinite_in_a_row + 1, 0),
        )
        metrics["nonfinite_updates"] = state.nonfinite_updates.astype(jnp.float32)
        metrics["nonfinite_in_a_row"] = state.nonfinite_in_a_row.astype(jnp.float32)
        return state, metrics

    def _distribution(self, policy_params: Any, seen: Array) -> Distribution:
        distribution: Any = self.policy.apply(policy_params, seen)
        return distribution

    def _values(self, critic_params: Any, seen: Array, action: Array) -> Array:
        values: Any = self.critics.apply(critic_params, seen, action)
        return values

    def _see(self, state: SACState, observation: Array) -> Array:
        if not self.config.normalise_observations:
            return observation
        return normalise(state.normaliser, observation)

    def _mean(self, tree):
        return jax.lax.pmean(tree, self.axis_name) if self.axis_name else tree

    def _fresh(self, policy_params: Any, seen: Float[Array, "groups S O"], keys: PRNGKeyArray):
        """An action for every state with its log-probability; each group from its own key."""
        loc, scale = self._distribution(policy_params, seen)
        action, pre_tanh = jax.vmap(tanh_normal_sample)(keys, loc, scale)
        return action, tanh_normal_log_prob(pre_tanh, loc, scale)

    def _gradient_step(self, state: SACState, batch: SoftBatch, keys: PRNGKeyArray):
        """One step of everything; `batch` is [groups, S, ...]."""
        split = jax.vmap(jax.random.split)(keys)
        with_critics, critic_metrics = self._critic_step(state, batch, split[:, 0])
        moved, policy_metrics = self._policy_step(with_critics, batch, split[:, 1])
        metrics = critic_metrics | policy_metrics
        norms = metrics["critic_gradient_norm"], metrics["policy_gradient_norm"]
        finite = jnp.isfinite(norms[0]) & jnp.isfinite(norms[1])
        metrics["dropped"] = ~finite
        return jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state), metrics

    def _critic_step(self, state: SACState, batch: SoftBatch, keys: PRNGKeyArray):
        """Critics, and the targets that follow them."""
        loss, grads = self._mean(
            jax.value_and_grad(self._critic_loss)(state.critic_params, state, batch, keys)
        )
        step, optimiser = self.critic_optimiser.update(
            grads, state.critic_optimiser, state.critic_params
        )
        params = optax.apply_updates(state.critic_params, step)
        moved = state.replace(
            critic_params=params,
            critic_optimiser=optimiser,
            target_critic_params=optax.incremental_update(
                params, state.target_critic_params, self.config.polyak_rate
            ),
        )
        return moved, {"critic_loss": loss, "critic_gradient_norm": optax.tree.norm(grads)}

    def _policy_step(self, state: SACState, batch: SoftBatch, keys: PRNGKeyArray):
        """Policy and temperature, by the critics of the moment."""
        (loss, (log_prob, value)), grads = jax.value_and_grad(self._policy_loss, has_aux=True)(
            state.policy_params, state, batch, keys
        )
        temperature_grad = jax.grad(temperature_loss)(
            state.log_temperature,
            log_prob,
            jnp.ones(log_prob.shape, bool),
            target_entropy=self.target_entropy,
        )
        loss, grads, temperature_grad, entropy, value = self._mean(
            (loss, grads, temperature_grad, -log_prob.mean(), value.mean())
        )
        step, optimiser = self.policy_optimiser.update(
            grads, state.policy_optimiser, state.policy_params
        )
        temperature_step, temperature_optimiser = self.temperature_optimiser.update(
            temperature_grad, state.temperature_optimiser
        )
        moved = state.replace(
            policy_params=optax.apply_updates(state.policy_params, step),
            policy_optimiser=optimiser,
            log_temperature=optax.apply_updates(state.log_temperature, temperature_step),
            temperature_optimiser=temperature_optimiser,
        )
        return moved, {
            "policy_loss": loss,
            "policy_gradient_norm": optax.tree.norm(grads),
            "temperature": jnp.exp(state.log_temperature),
            "entropy": entropy,
            "value_mean": value,
        }

    def _critic_loss(self, critic_params, state: SACState, batch: SoftBatch, keys: PRNGKeyArray):
        action, log_prob = self._fresh(state.policy_params, batch.next_observation, keys)
        target = soft_target(
            batch.reward,
            batch.discount,
            self._values(state.target_critic_params, batch.next_observation, action),
            log_prob,
            temperature=jnp.exp(state.log_temperature),
        )
        value = self._values(critic_params, batch.observation, batch.action)
        return critic_error(value, target, jnp.ones(target.shape, bool))

    def _policy_loss(self, policy_params, state: SACState, batch: SoftBatch, keys: PRNGKeyArray):
        action, log_prob = self._fresh(policy_params, batch.observation, keys)
        value = self._values(state.critic_params, batch.observation, action)
        live = jnp.ones(log_prob.shape, bool)
        temperature = jnp.exp(state.log_temperature)
        loss = soft_actor_loss(log_prob, value, live, temperature=temperature)
        return loss, (log_prob, value)
