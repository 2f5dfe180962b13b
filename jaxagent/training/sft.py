"""Supervised training of a planner: the host loop of one run, from its folder to its end."""

import contextlib
import dataclasses
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from jaxagent.agents.planner import Imitation, ImitationState, TokenBatch
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.chunks import Position, stream
from jaxagent.training.config import evenly_spread
from jaxagent.training.devices import AXIS
from jaxagent.training.interruption import Interrupted, watch_signals
from jaxagent.training.loop import NO_CHECKPOINT
from jaxagent.training.metrics import MetricsLog
from jaxagent.training.nonfinite import NONFINITE_LIMIT, NonFiniteTraining
from jaxagent.training.progress import Reporter

_LOG_INTERVAL = 20


@dataclasses.dataclass(frozen=True)
class SFTRunConfig:
    """Length of a run and where it is kept."""

    num_updates: int = 5_000
    """Steps of the optimiser; the learning rate reaches zero with the last."""
    num_validations: int = 4
    """Validations, spread evenly, the last at the end; at most one an update. Each also writes a
    checkpoint."""
    seed: int = 0
    """Of parameters and demonstrations."""
    name: str = ""
    """Name of the run folder; empty takes the first free number."""
    runs_dir: str = "runs"
    """Where run folders are kept."""
    checkpoints_kept: int = 2
    """Older checkpoints are deleted; the best parameters are kept apart."""
    num_devices: int | None = None
    """Devices to use; None is as many as divide the rows of a batch."""
    wandb: bool = False
    """Log to Weights & Biases as well; needs the extra wandb."""

    def __post_init__(self):
        for name in ("num_updates", "num_validations", "checkpoints_kept"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed ({self.seed}) must lie in [0, 2^31)")
        if not re.fullmatch(r"[\w.-]*", self.name) or self.name in (".", ".."):
            raise ValueError(f"name ({self.name!r}) may hold letters, digits, '_', '-' and '.'")

    @property
    def validation_updates(self) -> tuple[int, ...]:
        """After which updates is validated: `evenly_spread`."""
        return evenly_spread(self.num_validations, self.num_updates)


def data_mesh(rows: Sequence[int], num_devices: int | None) -> Mesh:
    """Devices over which the rows of every batch are divided.

    Args:
        rows: of each shape of batches.
        num_devices: how many; None uses as many as divide them all.

    Raises:
        ValueError: so many are not available or do not divide the rows.
    """
    available = jax.devices()
    fitting = [n for n in range(1, len(available) + 1) if not any(r % n for r in rows)]
    if num_devices is not None and num_devices not in fitting:
        raise ValueError(
            f"num_devices ({num_devices}) must be one of {fitting}: it must divide the rows of a "
            f"batch ({', '.join(map(str, rows))}), and {len(available)} are available"
        )
    return Mesh(np.array(available[: num_devices or fitting[-1]]), (AXIS,))


def placement(state: ImitationState, mesh: Mesh) -> ImitationState:
    """Where each array lies: parameters on every device, the optimiser's layers divided.

    What the optimiser keeps of the layers, stacked on the first axis, is divided over the devices
    (ZeRO stage 1, Rajbhandari et al. 2020), and with it its arithmetic: Muon's products are a
    quarter of a small planner's update. Only the finished changes are gathered.

    Args:
        state: or its shapes.
        mesh: of `data_mesh`.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec(AXIS))

    def place(path, leaf) -> NamedSharding:
        is_of_layers = any(getattr(part, "key", None) == "layers" for part in path)
        fits = leaf.ndim > 0 and leaf.shape[0] % mesh.devices.size == 0
        return divided if is_of_layers and fits else everywhere

    kept = jax.tree_util.tree_map_with_path(place, state.optimizer_state)
    places = jax.tree.map(lambda _: everywhere, state)
    return places.replace(optimizer_state=kept)


class Validation(NamedTuple):
    """How well the planner does: `value` is what the best is chosen by, the later of equals."""

    value: float
    metrics: dict[str, float]


@dataclasses.dataclass
class Teaching:
    """One supervised run.

    Attributes:
        imitation: what learns.
        chunk: the batches of a chunk, by its number.
        validate: called with the learnt parameters.
        keep: writes the parameters that validated best so far, or (False) the last.
        run: its length and name.
        mesh: see `data_mesh`.
        folder: where everything goes.
        reporter: what a person sees.
        config: what Weights & Biases shows.
        initial: parameters to begin with; None draws them.
        frozen: with LoRA, the parameters beside which it learns.
        between: called with (parameters, position of the stream) after so many updates.
    """

    imitation: Imitation
    chunk: Callable[[int], Sequence[TokenBatch]]
    validate: Callable[[Any], Validation]
    keep: Callable[[Any, bool], None]
    run: SFTRunConfig
    mesh: Mesh
    folder: pathlib.Path
    reporter: Reporter
    config: dict = dataclasses.field(default_factory=dict)
    initial: Any = None
    frozen: Any = None
    between: Mapping[int, Callable[[Any, Position], None]] = dataclasses.field(default_factory=dict)
    # Open while `train` runs.
    _checkpoints: Checkpoints = dataclasses.field(init=False, repr=False)
    _log: MetricsLog = dataclasses.field(init=False, repr=False)

    def __post_init__(self):
        self._replicated = NamedSharding(self.mesh, PartitionSpec())
        key = jax.random.key(self.run.seed)
        shapes = jax.eval_shape(self.imitation.init, key, self.initial)
        self._places = placement(shapes, self.mesh)
        self.update = jax.jit(
            self.imitation.update,
            donate_argnums=0,
            out_shardings=(self._places, self._replicated),
        )
        self._by_rows = NamedSharding(self.mesh, PartitionSpec(None, AXIS))
        self._frozen = jax.device_put(self.frozen, self._replicated)
        self._begin()

    def _begin(self) -> None:
        self._done, self._position, self._seconds = 0, Position(), 0.0
        self._best, self._tokens = float("-inf"), 0
        self._window: list[dict[str, jax.Array]] = []
        self._window_tokens, self._window_start = 0, time.perf_counter()

    def start(self) -> ImitationState:
        """The state before the first update."""
        key = jax.random.key(self.run.seed)
        state = jax.jit(self.imitation.init)(key, self.initial)
        return jax.device_put(state, self._places)

    def step(
        self, state: ImitationState, group: TokenBatch
    ) -> tuple[ImitationState, dict[str, jax.Array]]:
        """One update on a group of batches from the host; `state` is used up."""
        return self.update(state, self._frozen, jax.device_put(group, self._by_rows))

    def train(self, resume: bool) -> tuple[ImitationState, Validation]:
        """Run to the end.

        Args:
            resume: go on from the last checkpoint in the folder, if there is one.

        Returns:
            The last state and its validation.

        Raises:
            Interrupted: a signal came; everything is saved.
            NonFiniteTraining: non-finite gradients three updates in a row; the state is saved.
            CheckpointError: what is in the folder cannot be used.
        """
        self._checkpoints = Checkpoints(self.folder / "checkpoints", self.run.checkpoints_kept)
        self._begin()
        state = self.start()
        resumed_from = None
        if resume and self._checkpoints.latest() is not None:
            state, host = self._checkpoints.restore(state, self._places)
            self._take_up(host)
            resumed_from = self._done
            of = self.run.num_updates
            self.reporter.say(f"going on from {resumed_from:,} of {of:,} updates")
        elif resume:
            self.reporter.say(NO_CHECKPOINT)
        self._log = MetricsLog(self.folder, resumed_from, self.run.wandb, self.config)
        groups = stream(self.chunk, self.imitation.config.accumulation, self._position)
        try:
            with watch_signals() as stop, self._progress() as bar:
                return self._to_end(state, groups, stop, bar)
        finally:
            groups.close()  # type: ignore[attr-defined]
            self._checkpoints.close()
            self._log.close()

    def _to_end(self, state, groups: Iterator, stop, bar) -> tuple[ImitationState, Validation]:
        validation, validated = None, self.run.validation_updates
        self._window_start = time.perf_counter()
        while self._done < self.run.num_updates:
            group, self._position = next(groups)
            state, metrics = self.step(state, group)
            self._done += 1
            self._window.append(metrics)
            self._window_tokens += int((group.segment_ids != 0).sum())
            is_last = self._done == self.run.num_updates
            if is_last or self._done % _LOG_INTERVAL == 0:
                self._write_window(bar)
                self._check_finite(state, metrics)
            if self._done in self.between:
                self._write_window(bar)
                self.between[self._done](state.params, self._position)
                self._window_start = time.perf_counter()
            if self._done in validated:
                # Before the checkpoint, which holds what has been counted.
                self._write_window(bar)
                validation = self._validate(state)
                self._save(state)
            if number := stop.agreed():
                self._write_window(bar)
                self._save(state)
                raise Interrupted(number)
        return state, validation or self._validate(state)

    def _write_window(self, bar) -> None:
        """One record of the updates since the last; the only place that waits for the device."""
        if not self._window:
            return
        values = {k: float(np.mean(v)) for k, v in _stacked(self._window).items()}
        seconds = time.perf_counter() - self._window_start
        self._seconds += seconds
        self._tokens += self._window_tokens
        rate = self._window_tokens / seconds
        self._log.write(
            "train",
            self._done,
            self._tokens,
            values | {"tokens_per_second": rate, "seconds": self._seconds},
        )
        bar(self._done, values, rate)
        self._window, self._window_tokens = [], 0
        self._window_start = time.perf_counter()

    def _validate(self, state: ImitationState) -> Validation:
        validation = self.validate(state.params)
        self._log.write(
            "evaluation", self._done, self._tokens, validation.metrics | {"seconds": self._seconds}
        )
        told = "  ".join(f"{name} {value:.3f}" for name, value in validation.metrics.items())
        self.reporter.say(f"{self._done:>7,} updates  {self._seconds:6.0f} s  {told}")
        if validation.value >= self._best:  # of equals the later: its learning rate is lower
            self._best = validation.value
            self.keep(state.params, True)
        self.keep(state.params, False)
        self._window_start = time.perf_counter()
        return validation

    def _check_finite(self, state: ImitationState, metrics: dict[str, jax.Array]) -> None:
        if float(metrics["nonfinite_in_a_row"]) >= NONFINITE_LIMIT:
            self._save(state)
            raise NonFiniteTraining(
                f"the loss ({float(metrics['loss'])}) or its gradients were not finite in "
                f"{NONFINITE_LIMIT} updates in a row, at update {self._done}; the state is in "
                f"{self.folder / 'checkpoints'}"
            )

    def _save(self, state: ImitationState) -> None:
        host = {
            "update": self._done,
            "position": list(self._position),
            "seconds": self._seconds,
            "tokens": self._tokens,
            "best": None if self._best == float("-inf") else self._best,
        }
        self._checkpoints.save(self._done, state, host)

    def _take_up(self, host: dict[str, Any]) -> None:
        self._done, self._seconds, self._tokens = host["update"], host["seconds"], host["tokens"]
        self._position = Position(*host["position"])
        if host["best"] is not None:
            self._best = host["best"]

    @contextlib.contextmanager
    def _progress(self) -> Iterator[Callable[[int, dict[str, float], float], None]]:
        """A bar over the updates, where the console is a terminal."""
        console = self.reporter.console
        columns = (
            BarColumn(),
            TextColumn("{task.completed:,} updates  {task.fields[told]}"),
            TimeRemainingColumn(),
        )
        hidden = not console.is_terminal
        with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
            task = bar.add_task("", total=self.run.num_updates, completed=self._done, told="")

            def advance(done: int, values: dict[str, float], rate: float) -> None:
                told = f"loss {values['loss']:.3f}  {rate:,.0f} tokens/s"
                bar.update(task, completed=done, told=told)

            yield advance


def _stacked(window: Sequence[dict[str, jax.Array]]) -> dict[str, np.ndarray]:
    values = jax.device_get(list(window))
    return {name: np.array([each[name] for each in values]) for name in values[0]}
