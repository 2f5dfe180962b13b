"""What a person sees while a run goes on."""

import contextlib
from collections.abc import Iterator

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from jaxagent.training.config import RunConfig
from jaxagent.training.evaluate import Report


class Reporter:
    """Console lines and a progress bar; silent on all processes but the first."""

    def __init__(self, console: Console | None = None):
        """Write to a console; None is standard output."""
        self.console = console or Console(quiet=jax.process_index() != 0, highlight=False)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._iteration_steps = 0
        self._return = "—"

    def say(self, text: str) -> None:
        """One line, as it is."""
        self.console.print(text, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, run: RunConfig, done: int) -> Iterator[None]:
        """A bar over the iterations of a run, where the console is a terminal."""
        self._iteration_steps = run.num_envs * run.unroll_length
        columns = (
            BarColumn(),
            TextColumn("{task.fields[steps]} steps"),
            TextColumn("return {task.fields[value]}"),
            TextColumn("{task.fields[rate]} steps/s"),
            TimeRemainingColumn(),
        )
        with Progress(
            *columns, console=self.console, disable=not self.console.is_terminal, transient=True
        ) as bar:
            self._bar = bar
            self._task = bar.add_task(
                "", total=run.num_iterations, completed=done, steps="0", value="—", rate="—"
            )
            yield
        self._bar = None

    def advance(self, iteration: int, rate: float) -> None:
        """One iteration is done."""
        if self._bar:
            self._bar.update(
                self._task,
                completed=iteration,
                steps=f"{iteration * self._iteration_steps:,}",
                value=self._return,
                rate=f"{rate:,.0f}",
            )

    def evaluated(self, steps: int, report: Report) -> None:
        """A line for an evaluation."""
        self._return = f"{report.interquartile_mean:,.1f}"
        success = sum(report.success_rate) / len(report.success_rate)
        falls = report.fall_rate
        fallen = "" if falls is None else f"   falls {sum(falls) / len(falls):6.1%}"
        self.say(
            f"{steps:>11,} steps   return without guidance {report.interquartile_mean:9,.1f}  "
            f"({report.interval})   length {report.episode_length:6.1f}   "
            f"success {success:6.1%}{fallen}"
        )

    def alarm(self, steps: int) -> None:
        """The audit rang."""
        self.say(
            f"{steps:>11,} steps   AUDIT: R_total rises while R_env falls; the agent may be "
            "learning the guidance instead of the task"
        )
