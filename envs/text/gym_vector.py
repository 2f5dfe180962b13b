"""The batch as a Gymnasium vector environment, for code written against that interface.

Needs the package ``gymnasium``, which is not a dependency of its own.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from envs.household.data import shuffled_forever
from jaxagent.text import GameSource, TextEnv, TextInfo

try:
    import gymnasium  # pyright: ignore[reportMissingImports]
    from gymnasium.vector import AutoresetMode  # pyright: ignore[reportMissingImports]
except ImportError as error:
    raise ImportError("the Gymnasium interface needs it: pip install 'gymnasium>=1.1'") from error

_LONGEST_TEXT = 8192
_CHARACTERS = frozenset(map(chr, range(32, 127))) | {"\n"}


class TextVectorEnv(gymnasium.vector.VectorEnv):
    """Any `TextEnv` as ``gymnasium.vector.VectorEnv`` with next-step auto-reset.

    Observations and actions are sequences of texts. ``info["admissible"]`` lists the commands
    possible, ``info["won"]`` says which episodes were won.

    Args (of the constructor):
        env: the batch; it is closed with this one.
        games: a sequence, of which each environment plays all in a random order, then all again
            in another; or an endless iterator, whose next game the next episode takes.

    Raises:
        ValueError: a sequence without games.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, env: TextEnv, games: Sequence[GameSource] | Iterator[GameSource]) -> None:
        self.num_envs = env.num_envs
        self._env = env
        self._games = None if isinstance(games, Iterator) else games
        self._orders = [
            games if isinstance(games, Iterator) else shuffled_forever(games, _any_seed())
            for _ in range(env.num_envs)
        ]
        # A lost episode's observation is empty.
        text = gymnasium.spaces.Text(_LONGEST_TEXT, min_length=0, charset=_CHARACTERS)
        command = gymnasium.spaces.Text(_LONGEST_TEXT, charset=_CHARACTERS)
        self.single_observation_space, self.single_action_space = text, command
        self.observation_space = gymnasium.spaces.Tuple([text] * env.num_envs)
        self.action_space = gymnasium.spaces.Tuple([command] * env.num_envs)
        self._ended = np.zeros(env.num_envs, bool)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Begins a new episode in every environment.

        Args:
            seed: decides which games come, from this reset on. A number s gives environment i
                the seed s + i; a sequence holds one for each. With None an environment goes on
                in the order that it has.
            options: ``{"reset_mask": mask}``, a Boolean array, resets the marked environments
                only, as in Gymnasium's own vector environments; nothing else is known.

        Returns:
            Observations and information of the whole batch.

        Raises:
            ValueError: not one seed per environment, a seed though the games come from an
                iterator, or options that are unknown.
        """
        super().reset(seed=int(seed) if isinstance(seed, int | np.integer) else None)
        slots = self._masked(options or {})
        for slot, own in enumerate(self._seeds(seed)):
            if own is not None and slot in slots:
                self._orders[slot] = shuffled_forever(self._seedable(), own)
        texts, info = self._env.reset([next(self._orders[slot]) for slot in slots], slots)
        self._ended[slots] = False
        return tuple(texts), _as_dict(info)

    def step(
        self, actions: Sequence[str]
    ) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Carries out one command per environment; those that had ended begin anew instead.

        Args:
            actions: one command per environment.

        Returns:
            Observations, rewards, terminated, truncated and information.
        """
        ended = self._ended.copy()
        step = self._env.step(list(actions))
        texts, info = step.observations, step.info
        terminated, truncated = step.terminated & ~ended, step.truncated & ~ended
        if ended.any():
            slots = np.flatnonzero(ended).tolist()
            texts, fresh = self._env.reset([next(self._orders[slot]) for slot in slots], slots)
            info = info._replace(
                admissible=fresh.admissible, won=fresh.won, steps=fresh.steps, lost=fresh.lost
            )
        self._ended = terminated | truncated
        return tuple(texts), step.rewards, terminated, truncated, _as_dict(info)

    def _seeds(self, seed: int | Sequence[int | None] | None) -> list[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + slot for slot in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{len(seed)} seeds given for {self.num_envs} environments")
        return [None if own is None else int(own) for own in seed]

    def _seedable(self) -> Sequence[GameSource]:
        if self._games is None:
            raise ValueError("a seed does nothing where an iterator gives the games: give a list")
        return self._games

    def _masked(self, options: dict[str, Any]) -> list[int]:
        if unknown := sorted(set(options) - {"reset_mask"}):
            raise ValueError(f"options {unknown} are unknown; reset_mask is the only one")
        mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, bool)))
        if mask.dtype != bool or mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"reset_mask must be {self.num_envs} Booleans, one at least true: {mask.tolist()}"
            )
        return np.flatnonzero(mask).tolist()

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the batch behind it."""
        self._env.close()


def _any_seed() -> int:
    return random.SystemRandom().getrandbits(63)


def _as_dict(info: TextInfo) -> dict[str, Any]:
    return dict(info._asdict())
