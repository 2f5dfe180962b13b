"""The host loop of a run: iterate, log, evaluate, save, until done."""

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxagent.training.audit import Audit
from jaxagent.training.checkpoint import Checkpoints
from jaxagent.training.config import RunConfig
from jaxagent.training.curriculum import Curriculum
from jaxagent.training.evaluate import Report, evaluate, fetch
from jaxagent.training.interruption import Interrupted, watch_signals
from jaxagent.training.metrics import MetricsLog
from jaxagent.training.nonfinite import NONFINITE_LIMIT, NonFiniteTraining, losses_of
from jaxagent.training.plan_follower import PlanFollower
from jaxagent.training.progress import Reporter
from jaxagent.training.trainer import Evaluation, Programs, Trainer, TrainState

OF_ENDED_EPISODES = {
    "episode_return", "episode_length", "episode_success", "episode_touched",
    "final_distance", "goals_reached", "steps_to_success", "guidance_correlation",
}  # fmt: skip
NO_CHECKPOINT = "no checkpoint yet: starting from the beginning"


@dataclasses.dataclass
class Arm:
    """One training in one folder, from whatever was saved there to its end.

    Attributes:
        trainer: what is trained.
        programs: compiled.
        run: size of the run.
        folder: where everything goes.
        reporter: what a person sees.
        guided: False takes all guidance away (the other arm of a comparison).
        draw: called with (folder, evaluation) after each evaluation, on process 0.
        config: what Weights & Biases shows.
        prepare: called once with the fresh state of a new run, for a warm start.
        curriculum: what moves the difficulty between iterations; None keeps it.
        plans: who changes the plan after evaluations; None keeps it.
    """

    trainer: Trainer
    programs: Programs
    run: RunConfig
    folder: pathlib.Path
    reporter: Reporter
    guided: bool = True
    draw: Callable[[pathlib.Path, Evaluation], None] = lambda folder, evaluation: None
    config: dict = dataclasses.field(default_factory=dict)
    prepare: Callable[[TrainState], TrainState] = lambda state: state
    curriculum: Curriculum | None = None
    plans: PlanFollower | None = None
    # Open while `train` runs; the log on process 0 alone.
    _checkpoints: Checkpoints = dataclasses.field(init=False, repr=False)
    _log: MetricsLog | None = dataclasses.field(init=False, repr=False, default=None)

    def __post_init__(self):
        self._begin()

    def _begin(self) -> None:
        self._audit = Audit()
        self._stopped: list[int] = []
        self._seconds, self._done = 0.0, 0

    def train(self, resume: bool) -> tuple[TrainState, Report]:
        """Run to the end.

        Args:
            resume: go on from the last checkpoint in the folder, if there is one.

        Returns:
            The final state, and its evaluation.

        Raises:
            Interrupted: a signal came; everything is saved.
            NonFiniteTraining: in every seed a loss that was applied is not finite, or gradients
                were not three updates in a row; the state is dumped. One seed of several is
                stopped and named, and the others go on.
            CheckpointError: what is in the folder cannot be used.
        """
        self._checkpoints = Checkpoints(self.folder / "checkpoints", self.run.checkpoints_kept)
        self._begin()
        state, resumed_from = self._start(resume)
        leads = jax.process_index() == 0
        self._log = (
            MetricsLog(self.folder, resumed_from, self.run.wandb, self.config) if leads else None
        )
        try:
            with watch_signals() as stop, self.reporter.progress(self.run, self._done):
                return self._iterate_to_end(state, stop, fresh=resumed_from is None)
        finally:
            self._checkpoints.close()
            if self._log:
                self._log.close()

    def _start(self, resume: bool) -> tuple[TrainState, int | None]:
        seeds = range(self.run.seed, self.run.seed + self.run.num_seeds)
        if resume and self._checkpoints.latest() is not None:
            like = self.trainer.abstract_state(self.run.num_seeds)
            state, host = self._checkpoints.restore(like, self.trainer.shardings(like))
            self._seconds, self._done = host["seconds"], host["iteration"]
            self._name_stopped(fetch(state.agent.nonfinite_in_a_row) >= NONFINITE_LIMIT)
            of = self.run.num_iterations * self.run.num_envs * self.run.unroll_length
            self.reporter.say(f"going on from {self._steps:,} of {of:,} steps")
            self._audit.restore(host["audit"])
            if self.curriculum:
                self.curriculum.restore(host["curriculum"])
                state = self.curriculum.begin(self.trainer, state)
            if self.plans:
                self.plans.restore(host["plans"])
            return state, self._done
        if resume:
            self.reporter.say(NO_CHECKPOINT)
        state = self.prepare(self.trainer.init(list(seeds)))
        if self.curriculum:
            state = self.curriculum.begin(self.trainer, state)
        if not self.guided and state.guidance is not None:
            state = switch_guidance(state, 0.0)
        return state, None

    @property
    def _steps(self) -> int:
        return self._done * self.run.num_envs * self.run.unroll_length

    def _iterate_to_end(self, state, stop, fresh: bool) -> tuple[TrainState, Report]:
        report, evaluated = None, set(self.run.evaluation_iterations)
        if fresh:
            state, report = self._evaluate(state)
            self._save(state)
        while self._done < self.run.num_iterations:
            state = self._iterate(state)
            if self._done in evaluated:
                state, report = self._evaluate(state)
                self._save(state)
            if number := stop.agreed():
                self._save(state)
                raise Interrupted(number)
        if report is None:  # resumed after its end: nothing is left but to say how it went
            state, report = self._evaluate(state, log=False)
        return state, report

    def _iterate(self, state: TrainState) -> TrainState:
        begin = time.perf_counter()
        state, metrics = self.programs.iterate(state)
        metrics = fetch(metrics)
        seconds = time.perf_counter() - begin
        self._seconds += seconds
        self._done += 1
        steps = self.run.num_envs * self.run.unroll_length
        stopped = metrics["nonfinite_in_a_row"] >= NONFINITE_LIMIT
        for name in losses_of(metrics):
            stopped = stopped | ~np.isfinite(metrics[name])
        self._name_stopped(stopped)
        goes_on = ~stopped | stopped.all()
        seen = {name: value[goes_on] for name, value in metrics.items()}
        values: dict[str, Any] = {name: float(np.mean(value)) for name, value in seen.items()}
        for name in OF_ENDED_EPISODES & metrics.keys():
            values[name] = _mean_of_ended(seen, name)
        values["steps_per_second"] = steps * self.run.num_seeds / seconds
        values["seconds"] = self._seconds
        guided = "reward_guidance" in values
        if guided and self._audit.observe(values["reward_total"], values["reward_env"]):
            values["audit_alarm"] = 1
            self.reporter.alarm(self._done * steps)
        if self.curriculum:
            values |= self.curriculum.metrics  # those of this iteration
            fraction = self._done / self.run.num_iterations
            state = self.curriculum.advance(state, metrics, fraction)
        if self._stopped:
            values["stopped_seeds"] = self._stopped
        self._write("train", values)
        self.reporter.advance(self._done, values["steps_per_second"])
        if stopped.all():
            self._dump(state, _reason(metrics, values))
        return state

    def _name_stopped(self, stopped: np.ndarray) -> None:
        """Say which seeds have been stopped since the last time, and remember all that are."""
        seeds = [self.run.seed + int(row) for row in np.flatnonzero(stopped)]
        for seed in sorted(set(seeds) - set(self._stopped)):
            self.reporter.say(
                f"{self._steps:>11,} steps   seed {seed} is stopped: a loss was not finite, or its "
                f"gradients were not in {NONFINITE_LIMIT} updates in a row; what it had learnt "
                "before stays"
            )
        self._stopped = seeds

    def _dump(self, state: TrainState, reason: str) -> None:
        dump = Checkpoints(self.folder / "nonfinite", 1)
        dump.save(self._done, state, self._host())
        dump.close()
        raise NonFiniteTraining(
            f"{reason}, at iteration {self._done}; the state is in {self.folder / 'nonfinite'}"
        )

    def _evaluate(self, state: TrainState, log: bool = True) -> tuple[TrainState, Report]:
        evaluation, report = evaluate(self.trainer, self.programs.evaluate, state, self.run.seed)
        returns = self.trainer.replicate(np.array(report.episode_return, np.float32))
        if log:
            guidance = self.programs.observe_evaluation(state.guidance, returns)
            state = state.replace(guidance=guidance)
            told = {"stopped_seeds": self._stopped} if self._stopped else {}
            self._write("evaluation", report.metrics() | {"seconds": self._seconds} | told)
        self.reporter.evaluated(self._steps, report)
        if log and self.plans:
            state = self._review_plan(state, evaluation, self.plans)
        if jax.process_index() == 0:
            self.draw(self.folder, evaluation)
        return state, report

    def _review_plan(
        self, state: TrainState, evaluation: Evaluation, plans: PlanFollower
    ) -> TrainState:
        number = sum(at <= self._done for at in self.run.evaluation_iterations)
        state, reason = plans.review(state, number, evaluation)
        if reason:
            self.reporter.say(f"{self._steps:>11,} steps   new plan ({reason}): {plans.describe()}")
        return state

    def _write(self, kind: str, values: dict[str, Any]) -> None:
        if self._log:
            self._log.write(kind, self._done, self._steps, values)

    def _host(self) -> dict[str, Any]:
        return {
            "iteration": self._done,
            "seconds": self._seconds,
            "audit": self._audit.snapshot(),
            "curriculum": self.curriculum and self.curriculum.snapshot(),
            "plans": self.plans and self.plans.snapshot(),
        }

    def _save(self, state: TrainState) -> None:
        self._checkpoints.save(self._done, state, self._host())


def switch_guidance(state: TrainState, value: float) -> TrainState:
    """Turn guidance off (0) or on (1) without compiling again."""
    if state.guidance is None:
        raise ValueError("guidance (None) must be there to be switched")
    switch = state.guidance.switch
    host = np.full(switch.shape, value, switch.dtype)
    changed = jax.make_array_from_process_local_data(switch.sharding, host)
    return state.replace(guidance=state.guidance.replace(switch=changed))


def _mean_of_ended(metrics: dict[str, np.ndarray], name: str) -> float | None:
    """Mean over seeds in which an episode ended; None where none did."""
    ended = metrics["episodes"] > 0
    return float(metrics[name][ended].mean()) if ended.any() else None


def _reason(metrics: dict[str, np.ndarray], values: dict[str, Any]) -> str:
    """Why no seed goes on."""
    losses = losses_of(metrics)
    for name in losses:
        if not np.isfinite(metrics[name]).all():
            return f"{name} is not finite ({values[name]})"
    named = " and ".join(losses)
    return f"gradients of {named} were not finite in {NONFINITE_LIMIT} updates in a row"
