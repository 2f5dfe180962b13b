"""The batch as a Gymnasium vector environment, for code written against that interface.

Needs the package ``gymnasium``, which is not a dependency of its own.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from envs.text.protocol import GameSource, TextEnv, TextInfo

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
        games: an endless iterator over games, e.g. `envs.text.data.shuffled_forever`; each
            episode takes the next.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, env: TextEnv, games: Iterator[GameSource]) -> None:
        self.num_envs = env.num_envs
        self._env, self._games = env, games
        # A lost episode's observation is empty.
        text = gymnasium.spaces.Text(_LONGEST_TEXT, min_length=0, charset=_CHARACTERS)
        command = gymnasium.spaces.Text(_LONGEST_TEXT, charset=_CHARACTERS)
        self.single_observation_space, self.single_action_space = text, command
        self.observation_space = gymnasium.spaces.Tuple([text] * env.num_envs)
        self.action_space = gymnasium.spaces.Tuple([command] * env.num_envs)
        self._ended = np.zeros(env.num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Begins a new episode in every environment.

        Args:
            seed: must be None: which games come is decided by ``games``.
            options: must be None.

        Returns:
            Observations and information.

        Raises:
            ValueError: a seed or options are given, which would do nothing.
        """
        if seed is not None or options is not None:
            raise ValueError("seed and options do nothing here: the iterator of games decides")
        texts, info = self._env.reset([next(self._games) for _ in range(self.num_envs)])
        self._ended[:] = False
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
            texts, fresh = self._env.reset([next(self._games) for _ in slots], slots)
            info = info._replace(
                admissible=fresh.admissible, won=fresh.won, steps=fresh.steps, lost=fresh.lost
            )
        self._ended = terminated | truncated
        return tuple(texts), step.rewards, terminated, truncated, _as_dict(info)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the batch behind it."""
        self._env.close()


def _as_dict(info: TextInfo) -> dict[str, Any]:
    return dict(info._asdict())
