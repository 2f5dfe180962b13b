"""Proximal policy optimisation as a pure agent: init, act, update."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import struct
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxagent.agents.ppo_config import PPOConfig
from jaxagent.losses import (
    gae,
    ppo_loss,
    tanh_normal_entropy,
    tanh_normal_kl,
    tanh_normal_log_prob,
    tanh_normal_sample,
)
from jaxagent.models.networks import TanhNormalPolicy, ValueCritic
from jaxagent.models.normaliser import Normaliser, init_normaliser, normalise, update_normaliser
from jaxagent.types import PolicySample, Trajectory

Distribution = tuple[Float[Array, "*S A"], Float[Array, "*S A"]]  # (loc, scale) before tanh


class PPOState(struct.PyTreeNode, kw_only=True):
    """Everything PPO learns and counts."""

    policy_params: Any
    critic_params: Any
    policy_optimiser: optax.OptState
    critic_optimiser: optax.OptState
    normaliser: Normaliser
    nonfinite_updates: Int[Array, ""]  # updates in which a gradient step had to be dropped
    nonfinite_in_a_row: Int[Array, ""]  # the last ones of these without a clean one between


class _Samples(NamedTuple):
    """What a gradient step reads; leading axes are whatever the batch has."""

    observation: Float[Array, "*S O"]  # as the networks see it
    pre_tanh: Float[Array, "*S A"]
    behaviour_log_prob: Float[Array, "*S"]
    advantage: Float[Array, "*S"]  # whitened over the whole batch, all devices
    behaviour_value: Float[Array, "*S"]
    value_target: Float[Array, "*S"]
    teacher: Distribution | None


class PPO:
    """PPO bound to its networks and optimisers (Schulman et al. 2017).

    The methods are pure functions of the state; the object holds only what never changes.
    """

    def __init__(
        self,
        config: PPOConfig,
        *,
        observation_size: int,
        action_size: int,
        num_updates: int,
        axis_name: str | None = None,
        teacher: Callable[[Float[Array, "*S O"]], Distribution] | None = None,
        policy: nn.Module | None = None,
        critic: nn.Module | None = None,
    ):
        """Bind networks and optimisers.

        Args:
            config: hyper-parameters.
            observation_size: O.
            action_size: A.
            num_updates: calls of `update` in the whole training, where the learning-rate
                schedules end.
            axis_name: mapped device axis over which gradients and statistics are averaged.
            teacher: action distribution to distil from, of raw observations; adds
                distill_cost · KL(student ‖ teacher) to the loss.
            policy: observation -> (loc, scale) before tanh; None is a plain network of the
                configuration's sizes.
            critic: observation -> value; None likewise.
        """
        self.config = config
        self.observation_size = observation_size
        self.axis_name = axis_name
        self.teacher = teacher
        self.policy = policy or TanhNormalPolicy(
            action_size, config.policy_hidden_sizes, config.activation, config.initial_scale
        )
        self.critic = critic or ValueCritic(config.critic_hidden_sizes, config.activation)
        steps = num_updates * config.num_epochs * config.num_minibatches
        self.policy_optimiser = _optimiser(config, config.policy_learning_rate, steps)
        self.critic_optimiser = _optimiser(config, config.critic_learning_rate, steps)

    def init(self, key: PRNGKeyArray) -> PPOState:
        """Fresh parameters, optimisers and statistics."""
        policy_key, critic_key = jax.random.split(key)
        blank = jnp.zeros((1, self.observation_size))
        policy_params = self.policy.init(policy_key, blank)
        critic_params = self.critic.init(critic_key, blank)
        return PPOState(
            policy_params=policy_params,
            critic_params=critic_params,
            policy_optimiser=self.policy_optimiser.init(policy_params),
            critic_optimiser=self.critic_optimiser.init(critic_params),
            normaliser=init_normaliser(self.observation_size),
            nonfinite_updates=jnp.zeros((), jnp.int32),
            nonfinite_in_a_row=jnp.zeros((), jnp.int32),
        )

    def distribution(self, state: PPOState, observation: Float[Array, "*S O"]) -> Distribution:
        """(loc, scale) of the action before tanh; tanh(loc) is the deterministic action."""
        return self._distribution(state.policy_params, self._see(state, observation))

    def act(
        self, state: PPOState, observation: Float[Array, "B O"], keys: PRNGKeyArray
    ) -> PolicySample:
        """Sample one action for each observation, each from its own key of [B]."""
        loc, scale = self.distribution(state, observation)
        action, pre_tanh = jax.vmap(tanh_normal_sample)(keys, loc, scale)
        return PolicySample(action, pre_tanh, tanh_normal_log_prob(pre_tanh, loc, scale))

    def update(
        self,
        state: PPOState,
        trajectory: Trajectory,
        reward: Float[Array, "T B"],
        key: PRNGKeyArray,
    ) -> tuple[PPOState, dict[str, Float[Array, ""]]]:
        """All epochs of gradient steps on one batch of experience.

        A gradient step that is not finite is dropped, and the update counted as such. The
        observation statistics move only afterwards: during the epochs, old and new policy see
        the same inputs, so the first ratio is exactly 1.

        Args:
            state: what was learnt so far; the behaviour policy.
            trajectory: experience of that policy.
            reward: what to maximise, R_total; the trajectory's own reward is not read.
            key: consumed by shuffling and the entropy estimate.

        Returns:
            The next state, and metrics averaged over gradient steps and devices.
        """
        samples, metrics = self._prepare(state, trajectory, reward)
        groups = self.config.shuffle_groups
        if self.axis_name:
            groups //= jax.lax.axis_size(self.axis_name)
        samples = jax.tree.map(lambda x: _group(x, groups), samples)
        first = jax.lax.axis_index(self.axis_name) * groups if self.axis_name else 0
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, first + jnp.arange(groups))

        def epoch(carry, number):
            return self._epoch(
                carry, samples, jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            )

        carry, steps = jax.lax.scan(
            epoch, (state, jnp.zeros((), bool)), jnp.arange(self.config.num_epochs)
        )
        applied, dropped = steps.pop("applied"), steps.pop("dropped").any()
        total = jnp.maximum(applied.sum(), 1.0)
        metrics |= {name: (value * applied).sum() / total for name, value in steps.items()}
        state = carry[0].replace(
            normaliser=update_normaliser(
                carry[0].normaliser, trajectory.observation, self.axis_name
            ),
            nonfinite_updates=carry[0].nonfinite_updates + dropped,
            nonfinite_in_a_row=jnp.where(dropped, carry[0].nonfinite_in_a_row + 1, 0),
        )
        metrics["gradient_steps"] = applied.sum()
        metrics["nonfinite_updates"] = state.nonfinite_updates.astype(jnp.float32)
        metrics["nonfinite_in_a_row"] = state.nonfinite_in_a_row.astype(jnp.float32)
        return state, metrics

    def _distribution(self, policy_params: Any, seen: Array) -> Distribution:
        distribution: Any = self.policy.apply(policy_params, seen)
        return distribution

    def _value(self, critic_params: Any, seen: Array) -> Array:
        value: Any = self.critic.apply(critic_params, seen)
        return value

    def _see(self, state: PPOState, observation: Array) -> Array:
        if not self.config.normalise_observations:
            return observation
        return normalise(state.normaliser, observation)

    def _mean(self, tree):
        return jax.lax.pmean(tree, self.axis_name) if self.axis_name else tree

    def _prepare(self, state: PPOState, trajectory: Trajectory, reward) -> tuple[_Samples, dict]:
        """Advantages and targets under the behaviour parameters, once for all epochs."""
        seen = self._see(state, trajectory.observation)
        value = self._value(state.critic_params, seen)
        advantage = gae(
            self.config.reward_scale * reward,
            self.config.discount_factor * (1.0 - trajectory.terminated),
            value,
            self._successor_value(state, trajectory, value),
            trajectory.episode_end,
            gae_lambda=self.config.gae_lambda,
        )
        target = advantage + value
        centred = advantage - self._mean(advantage.mean())
        whitened = centred * jax.lax.rsqrt(self._mean((centred**2).mean()) + 1e-8)
        spread = self._mean(((target - self._mean(target.mean())) ** 2).mean())
        metrics = {
            "explained_variance": 1.0
            - self._mean((advantage**2).mean()) / jnp.maximum(spread, 1e-8),
            "value_mean": self._mean(value.mean()),
        }
        samples = _Samples(
            observation=seen,
            pre_tanh=trajectory.pre_tanh,
            behaviour_log_prob=trajectory.behaviour_log_prob,
            advantage=whitened,
            behaviour_value=value,
            value_target=target,
            teacher=self.teacher(trajectory.observation) if self.teacher else None,
        )
        return samples, metrics

    def _successor_value(self, state: PPOState, trajectory: Trajectory, value):
        """V(s'), of the true successor wherever an episode was cut.

        Inside an episode the successor is the next step's observation, whose value is known.
        Values at cuts cost a second pass, which is taken only when there is a cut: with a time
        limit of 1,000 steps most batches have none.
        """

        def evaluate(observation):
            return self._value(state.critic_params, self._see(state, observation))

        last = evaluate(trajectory.next_observation[-1])
        following = jnp.concatenate([value[1:], last[None]])
        at_cuts = jax.lax.cond(
            trajectory.truncated.any(),
            lambda: evaluate(trajectory.next_observation),
            lambda: following,
        )
        return jnp.where(trajectory.truncated, at_cuts, following)

    def _epoch(self, carry, samples: _Samples, keys: PRNGKeyArray):
        """One shuffled pass; `samples` are [groups, S, ...], `keys` [groups]."""
        count = samples.advantage.shape[1]
        minibatches = self.config.num_minibatches
        order_keys, noise_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
        order = jax.vmap(lambda key: jax.random.permutation(key, count))(order_keys)
        order = order.reshape(order.shape[0], minibatches, -1).swapaxes(0, 1)

        def minibatch(carry, numbered):
            number, index = numbered
            noise = jax.vmap(jax.random.fold_in, (0, None))(noise_keys, number)
            chosen = jax.tree.map(lambda x: _pick(x, index), samples)
            state, stopped = carry
            if self.config.target_kl is None:
                state, metrics = self._gradient_step(state, chosen, noise)
                return (state, stopped), metrics
            state, metrics = jax.lax.cond(
                stopped,
                lambda: (state, self._no_step(state, chosen, noise)),
                lambda: self._gradient_step(state, chosen, noise),
            )
            return (state, stopped | (metrics["kl"] > self.config.target_kl)), metrics

        return jax.lax.scan(minibatch, carry, (jnp.arange(minibatches), order))

    def _no_step(self, state, chosen, noise) -> dict[str, Float[Array, ""]]:
        shapes = jax.eval_shape(self._gradient_step, state, chosen, noise)[1]
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def _gradient_step(self, state: PPOState, samples: _Samples, keys: PRNGKeyArray):
        params = (state.policy_params, state.critic_params)
        grads, metrics = self._mean(jax.grad(self._loss, has_aux=True)(params, samples, keys))
        norms = optax.tree.norm(grads[0]), optax.tree.norm(grads[1])
        finite = jnp.isfinite(norms[0]) & jnp.isfinite(norms[1])
        policy_step, policy_optimiser = self.policy_optimiser.update(
            grads[0], state.policy_optimiser, params[0]
        )
        critic_step, critic_optimiser = self.critic_optimiser.update(
            grads[1], state.critic_optimiser, params[1]
        )
        moved = state.replace(
            policy_params=optax.apply_updates(params[0], policy_step),
            critic_params=optax.apply_updates(params[1], critic_step),
            policy_optimiser=policy_optimiser,
            critic_optimiser=critic_optimiser,
        )
        state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), moved, state)
        metrics |= {"policy_gradient_norm": norms[0], "critic_gradient_norm": norms[1]}
        metrics = {name: jnp.where(finite, value, 0.0) for name, value in metrics.items()}
        return state, metrics | {"applied": finite.astype(jnp.float32), "dropped": ~finite}

    def _entropy(self, keys: PRNGKeyArray, loc: Float[Array, "S A"], scale: Float[Array, "S A"]):
        """Each group of samples draws from its own key, whatever device it lies on."""
        grouped = (keys.shape[0], -1, loc.shape[-1])
        entropy = jax.vmap(tanh_normal_entropy)(keys, loc.reshape(grouped), scale.reshape(grouped))
        return entropy.reshape(-1)

    def _loss(self, params, samples: _Samples, keys: PRNGKeyArray):
        policy_params, critic_params = params
        loc, scale = self._distribution(policy_params, samples.observation)
        parts = ppo_loss(
            tanh_normal_log_prob(samples.pre_tanh, loc, scale),
            samples.behaviour_log_prob,
            samples.advantage,
            self._value(critic_params, samples.observation),
            samples.behaviour_value,
            samples.value_target,
            self._entropy(keys, loc, scale),
            jnp.ones(samples.advantage.shape, bool),
            clip_epsilon=self.config.clip_epsilon,
            value_clip_epsilon=self.config.value_clip_epsilon,
            value_cost=self.config.value_cost,
            entropy_cost=self.config.entropy_cost,
        )
        metrics = {
            "policy_loss": parts.policy,
            "value_loss": parts.value,
            "entropy": parts.entropy,
            "clip_fraction": parts.clip_fraction,
            "kl": parts.kl,
            "policy_scale": scale.mean(),
        }
        if samples.teacher is None:
            return parts.total, metrics
        metrics["distill_kl"] = tanh_normal_kl(loc, scale, *samples.teacher).mean()
        return parts.total + self.config.distill_cost * metrics["distill_kl"], metrics


def _optimiser(config: PPOConfig, peak: float, steps: int) -> optax.GradientTransformation:
    schedules = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, 0.0, steps),
        "warmup_cosine": lambda: optax.warmup_cosine_decay_schedule(
            0.0, peak, max(1, steps // 20), max(2, steps)
        ),
    }
    return optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.adam(schedules[config.learning_rate_schedule](), eps=1e-5),
    )


def _group(x: Float[Array, "T B *X"], groups: int) -> Float[Array, "groups S *X"]:
    """Cut the batch axis into groups and flatten time into each."""
    length, batch = x.shape[:2]
    x = x.reshape((length, groups, batch // groups) + x.shape[2:]).swapaxes(0, 1)
    return x.reshape((groups, length * (batch // groups)) + x.shape[3:])


def _pick(x: Float[Array, "groups S *X"], index: Int[Array, "groups M"]) -> Float[Array, "GM *X"]:
    """The chosen samples of every group, flat: matrix products over one axis are faster."""
    chosen = jax.vmap(lambda row, at: row[at])(x, index)
    return chosen.reshape((-1, *x.shape[2:]))
