"""Generation and training with a language model: `python -m benchmarks.generation`.

With `--against transformers` PyTorch does the same work on the same weights, each side in a
process of its own with as many threads, in turns, so that other load on the machine hits both.

What the peer does: its forward call with its own key-value cache, in a plain loop. In an agent's
episode it reads the whole history again every turn, which is what its `generate` does; the row
`episode, peer keeps its cache` shows what it would take to write for it, so that nobody mistakes
the one for the other.

Not compared, because the peer has no such thing: scoring candidates as a tree, against the time
of reading the same prompt and tokens once; and what a constraint adds to a decoding step.
"""

import argparse
import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from benchmarks.generation_sides import TINY, Sizes, candidate_tokens
from benchmarks.measurement import (
    Parser,
    consoles,
    describe,
    json_file,
    load_average,
    machine,
    positive,
    ratio,
    spread,
    without_nan,
)
from jaxagent.models.llm.config import LlamaConfig
from jaxagent.models.llm.llama import init_params
from jaxagent.models.llm.load import LanguageModel, load_model, save_model
from jaxagent.models.llm.tokenizer import train_tokenizer
from jaxagent.training.config import refuse
from jaxagent.training.evaluate import write_report

OURS, PEER = "ours", "transformers"


class Task(NamedTuple):
    """One thing to be measured.

    Attributes:
        name: of its row.
        method: of both sides.
        options: of the method.
        peer_options: of the peer's method; None where the peer has no such thing.
        at_least: the bar for our speed over the peer's; 0 where there is none.
        once: whether it is long enough to be measured once.
    """

    name: str
    method: str
    options: dict[str, Any]
    peer_options: dict[str, Any] | None
    at_least: float = 0.0
    once: bool = False


KEEP, READ_AGAIN = {"keep_cache": True}, {"keep_cache": False}
# What the peer has not comes after what both do, and training last, so that no memory is hidden
# by that of another kind.
TASKS = (
    Task("prefill", "prefill", {}, {}, 1.0),
    Task("decode, batch 1", "decode", {"batch": 1}, {"batch": 1}, 1.0),
    Task("decode, batch 8", "decode", {"batch": 8}, {"batch": 8}, 1.0),
    Task("episode", "episode", KEEP, READ_AGAIN, 2.0, once=True),
    Task("episode, peer keeps its cache", "episode", KEEP, KEEP, once=True),
    Task("decode, batch 1, set", "decode", {"batch": 1, "constraint": "set"}, None),
    Task("decode, batch 1, JSON", "decode", {"batch": 1, "constraint": "json"}, None),
    Task("decode, batch 8, set", "decode", {"batch": 8, "constraint": "set"}, None),
    Task("decode, batch 8, JSON", "decode", {"batch": 8, "constraint": "json"}, None),
    Task("score candidates", "score", {}, None),
    Task("training", "train", {}, {}, 1.0),
)


def tokens_of(task: Task, sizes: Sizes) -> int:
    """What its seconds are divided by."""
    if task.method == "prefill":
        return sizes.prompt
    if task.method == "decode":
        return task.options["batch"] * (sizes.new_tokens - 1)
    if task.method == "train":
        return sizes.train_batch * sizes.train_length
    if task.method == "episode":
        return sizes.turns * (sizes.reply + sizes.observation)
    return sizes.candidate_prompt + sum(map(len, candidate_tokens(sizes, 49152)))


class Side:
    """A process that answers tasks."""

    def __init__(self, name: str, folder: pathlib.Path, threads: int) -> None:
        self.name = name
        command = [sys.executable, "-m", "benchmarks.generation_sides", name, str(folder)]
        self._process = subprocess.Popen(
            [*command, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=pathlib.Path(__file__).parent.parent,
        )
        self.memory_loaded = self._answer()["memory"]

    def ask(self, task: Task, options: dict[str, Any], sizes: Sizes) -> dict[str, Any]:
        """Seconds, what was said, and memory so far."""
        asked = {"task": task.method, "options": options, "sizes": dataclasses.asdict(sizes)}
        assert_pipe(self._process.stdin).write(json.dumps(asked) + "\n")
        assert_pipe(self._process.stdin).flush()
        return self._answer()

    def close(self) -> None:
        """Let the process end."""
        if self._process.returncode is None:
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = assert_pipe(self._process.stdout).readline()
        if not line:
            self.close()
            raise RuntimeError(f"the process of {self.name} ended with {self._process.returncode}")
        return json.loads(line)


def assert_pipe(stream: Any) -> Any:
    """The stream, which `Popen` makes only where it was asked to."""
    if stream is None:
        raise RuntimeError("the process has no pipe")
    return stream


@contextlib.contextmanager
def model_folder(size: str) -> Generator[pathlib.Path, None, None]:
    """A Hugging Face folder that both sides load."""
    with tempfile.TemporaryDirectory(prefix="generation-") as name:
        folder = pathlib.Path(name)
        if size == "tiny":
            tokenizer = train_tokenizer(["go to desk 1", "take apple 1 from desk 2"] * 5, 400)
            config = LlamaConfig.tiny(vocab_size=2048, max_positions=1024)
            params = init_params(config, jax.random.key(0))
            save_model(folder, LanguageModel(config, params, tokenizer, "tiny"))
        else:
            save_model(folder, load_model(size))
        yield folder


def measure(
    sides: list[Side], sizes: Sizes, rounds: int, tasks: Iterable[Task], console: Console
) -> list[dict[str, Any]]:
    """A row of each task; the sides take turns, and at being first, too."""
    rows = []
    for task in tasks:
        doing = {
            side: task.options if side.name == OURS else task.peer_options
            for side in sides
            if side.name == OURS or task.peer_options is not None
        }
        seconds: dict[str, list[float]] = {side.name: [] for side in doing}
        said: dict[str, list[int]] = {}
        memory: dict[str, int] = {}
        for turn in range(2 if task.once else rounds + 1):
            is_warm_up = turn == 0
            for side in list(doing) if turn % 2 else list(doing)[::-1]:
                if is_warm_up and task.once and side.name == PEER:
                    continue  # it compiles nothing, and takes a minute
                report = side.ask(task, doing[side] or {}, sizes)
                if not is_warm_up:
                    seconds[side.name].append(report["seconds"])
                said[side.name], memory[side.name] = report["said"], report["memory"]
        rows.append(row_of(task, sizes, seconds, said, memory))
        console.print(f"{task.name}: {rows[-1]['rate']}")
    return rows


def row_of(
    task: Task,
    sizes: Sizes,
    seconds: dict[str, list[float]],
    said: dict[str, list[int]],
    memory: dict[str, int],
) -> dict[str, Any]:
    """What the measurements of one task say."""
    tokens = tokens_of(task, sizes)
    medians = {name: spread(values).median for name, values in seconds.items()}
    both = len(said) == 2
    return {
        "task": task.name,
        "tokens": tokens,
        "seconds": {name: spread(values)._asdict() for name, values in seconds.items()},
        "rate": {name: tokens / median for name, median in medians.items()},
        "ratio": ratio(medians[PEER], medians[OURS]) if both else math.nan,
        "at_least": task.at_least,
        "same_tokens": said[OURS] == said[PEER] if both else None,
        "memory": memory,
    }


def own_figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """What is compared with nothing but ourselves.

    Returns:
        score_ratio: scoring over one reading of the prompt and of all candidates' tokens, at the
        rate of prefill, at most 2; overhead of each constraint on a decoding step, under 0.2.
    """
    rate = {row["task"]: row["rate"][OURS] for row in rows}
    figures = {"score_ratio": rate["prefill"] / rate["score candidates"]}
    for batch in (1, 8):
        for kind in ("set", "JSON"):
            name = f"decode, batch {batch}"
            figures[f"overhead, batch {batch}, {kind}"] = rate[name] / rate[f"{name}, {kind}"] - 1
    return figures


def peak_memory(rows: list[dict[str, Any]], side: str) -> dict[str, float]:
    """Gigabytes that were resident at once, until tasks of each kind were done."""
    of_both = {task.name for task in TASKS if task.peer_options is not None}
    peaks = {row["task"]: row["memory"][side] / 2**30 for row in rows if side in row["memory"]}
    generation = {task: peak for task, peak in peaks.items() if task != "training"}
    kinds = {
        "generation of both": [peak for task, peak in generation.items() if task in of_both],
        "generation": list(generation.values()),
        "training": list(peaks.values()),
    }
    return {kind: max(found) for kind, found in kinds.items() if found}


def table(rows: list[dict[str, Any]]) -> Table:
    """What is shown of the tasks."""
    shown = Table("", "ours, tokens/s", "lowest", "highest", "transformers", "ratio", "bar", "same")
    for row in rows:
        seconds = row["seconds"][OURS]
        shown.add_row(
            row["task"],
            f"{row['rate'][OURS]:.1f}",
            f"{row['tokens'] / seconds['high']:.1f}",
            f"{row['tokens'] / seconds['low']:.1f}",
            f"{row['rate'][PEER]:.1f}" if PEER in row["rate"] else "",
            "" if math.isnan(row["ratio"]) else f"{row['ratio']:.2f}",
            f"{row['at_least']:.1f}" if row["at_least"] else "",
            {None: "", True: "yes", False: "no"}[row["same_tokens"]],
        )
    return shown


def read_command_line(arguments: Sequence[str]) -> argparse.Namespace:
    """The options; a mistake ends the program with status 2."""
    parser = Parser(prog="benchmarks.generation", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--against", choices=[PEER], help="measure PyTorch in the same run too")
    parser.add_argument(
        "--size", default="smollm2-135m", choices=["smollm2-135m", "tiny"], help="which model"
    )
    parser.add_argument("--rounds", type=positive, default=5, help="timings of each task")
    parser.add_argument("--threads", type=positive, help="of each side (default: all cores)")
    parser.add_argument("--only", nargs="+", choices=[t.name for t in TASKS], help="these alone")
    parser.add_argument("--json", type=json_file, help="write every figure to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; the exit status."""
    options = read_command_line(sys.argv[1:] if arguments is None else arguments)
    if options.against and importlib.util.find_spec("torch") is None:
        refuse("--against transformers needs PyTorch: pip install torch")
    console, progress = consoles()
    where = machine()
    sizes = TINY if options.size == "tiny" else Sizes()
    names = [OURS] + ([PEER] if options.against else [])
    tasks = [task for task in TASKS if not options.only or task.name in options.only]
    threads = options.threads or where["cores"] or os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(model_folder(options.size))
        except ValueError as error:
            refuse(str(error))
        sides = [Side(name, folder, threads) for name in names]
        for side in sides:
            stack.callback(side.close)
        rows = measure(sides, sizes, options.rounds, tasks, progress)
    results: dict[str, Any] = {"machine": where, "threads": threads, "rows": rows}
    results["memory"] = {name: peak_memory(rows, name) for name in names}
    if not options.only:
        results["own"] = own_figures(rows)
    results["ratio"] = min((r["ratio"] for r in rows if r["at_least"]), default=math.nan)
    where["load_average_after"] = load_average()
    console.print(table(rows))
    for name, peaks in results["memory"].items():
        told = ", ".join(f"{peak:.2f} GB until {what} was done" for what, peak in peaks.items())
        console.print(f"peak memory, {name}: {told}")
    for name, value in results.get("own", {}).items():
        console.print(f"{name}: {value:.2f}")
    console.print(describe(where, where["load_average_after"]))
    if options.json:
        write_report(options.json, without_nan(results))
    print(f"ratio: {results['ratio']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
