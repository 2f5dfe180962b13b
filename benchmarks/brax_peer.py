"""The peer: `brax.training.agents.ppo.train` as it is shipped, one epoch at a time."""

import contextlib
import dataclasses
import functools
import io
import queue
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from envs.brax_env import brax_envs

with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from brax.training.agents.ppo import networks as ppo_networks
    from brax.training.agents.ppo import train as ppo_train


class Epoch(NamedTuple):
    """What happened since the epoch before; number 0 is everything until training begins."""

    steps: int  # of the environment, since the start
    wall_seconds: float  # all of it: compiling, training, evaluating
    training_seconds: float  # collecting and updating, with any compiling in between
    evaluation_seconds: float  # 0 where nothing was evaluated
    episode_return: float | None  # of the evaluation


@dataclasses.dataclass(frozen=True)
class BraxPPO:
    """Arguments of Brax's PPO; names are Brax's.

    The defaults are those that Brax's training notebook gives for Ant, with an eighth of its
    environments.
    """

    num_timesteps: int
    num_evals: int
    """One before training, the others at equal distances."""
    seed: int = 0
    max_devices_per_host: int = 1
    num_envs: int = 512
    unroll_length: int = 5
    batch_size: int = 1024
    num_minibatches: int = 32
    num_updates_per_batch: int = 4
    discounting: float = 0.97
    learning_rate: float = 3e-4
    entropy_cost: float = 1e-2
    reward_scaling: float = 10.0
    episode_length: int = 1000
    num_eval_envs: int = 64
    deterministic_eval: bool = True
    normalize_observations: bool = True

    @property
    def steps_per_update(self) -> int:
        """Environment steps between two updates."""
        return self.batch_size * self.num_minibatches * self.unroll_length


def epochs(
    options: BraxPPO,
    policy_sizes: tuple[int, ...],
    critic_sizes: tuple[int, ...],
    environment: str = "ant",
    backend: str = "spring",
) -> Generator[Epoch, None, None]:
    """Train; stands still whenever nobody asks for the next epoch.

    JAX must have `device_put_replicated`, see below.

    Args:
        options: handed on.
        policy_sizes: hidden layers.
        critic_sizes: hidden layers.
        environment: Brax's name of it.
        backend: physics.

    Yields:
        Number 0 once the first evaluation is done, then one for each evaluation.
    """
    networks = functools.partial(
        ppo_networks.make_ppo_networks,
        policy_hidden_layer_sizes=policy_sizes,
        value_hidden_layer_sizes=critic_sizes,
    )

    def train(progress: Callable[[int, Mapping[str, Any]], None]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ppo_train.train(
                environment=brax_envs.get_environment(environment, backend=backend),
                network_factory=networks,
                progress_fn=progress,
                **dataclasses.asdict(options),
            )

    trained_before = 0.0
    for wall, steps, metrics in held(train):
        trained = float(metrics.get("training/walltime", 0.0))
        yield Epoch(
            steps=steps,
            wall_seconds=wall,
            training_seconds=trained - trained_before,
            evaluation_seconds=float(metrics["eval/epoch_eval_time"]),
            episode_return=float(metrics["eval/episode_reward"]),
        )
        trained_before = trained


class _Stop(Exception):
    """Nobody wants the rest."""


def held(
    train: Callable[[Callable[[int, Mapping[str, Any]], None]], None],
) -> Generator[tuple[float, int, Mapping[str, Any]], None, None]:
    """Turn a training that calls back into one that is asked.

    The training runs in a thread that works only while the caller waits for it, so two of them
    can take turns on the same cores without ever running at once.

    Args:
        train: given the function to call with (steps, metrics).

    Yields:
        Seconds it worked since the report before, and the report. Closing the generator stops
        the training at its next report.
    """
    turns: queue.SimpleQueue[bool] = queue.SimpleQueue()
    reports: queue.SimpleQueue = queue.SimpleQueue()

    def wait() -> None:
        if not turns.get():
            raise _Stop

    def progress(steps: int, metrics: Mapping[str, Any]) -> None:
        reports.put((steps, metrics))
        wait()

    def work() -> None:
        try:
            wait()
            train(progress)
            reports.put(None)
        except _Stop:
            pass
        except BaseException as failure:  # it belongs to whoever waits
            reports.put(failure)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            begin = time.perf_counter()
            turns.put(True)
            report = reports.get()
            if report is None:
                return
            if isinstance(report, BaseException):
                raise report
            yield (time.perf_counter() - begin, *report)
    finally:
        turns.put(False)
        thread.join()


@contextlib.contextmanager
def device_put_replicated_restored() -> Iterator[None]:
    """Give JAX back `device_put_replicated`, which Brax's PPO calls and newer JAX has lost.

    Does nothing where JAX has it. It is taken away again afterwards: nothing else may come to
    rely on it.
    """
    if hasattr(jax, "device_put_replicated"):
        yield
        return
    jax.device_put_replicated = _device_put_replicated  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del jax.device_put_replicated  # type: ignore[attr-defined]


def _device_put_replicated(tree, devices):
    placed = NamedSharding(Mesh(np.array(devices), ("i",)), PartitionSpec("i"))
    return jax.tree.map(
        lambda x: jax.device_put(jnp.stack([jnp.asarray(x)] * len(devices)), placed), tree
    )
