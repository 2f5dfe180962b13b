"""Configuration: frozen dataclasses, from preset, file and command line, in that order."""

import argparse
import contextlib
import dataclasses
import difflib
import io
import pathlib
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import tyro
import yaml
from beartype.door import is_bearable

Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """Size of a run and where it is kept."""

    total_steps: int = 3_000_000
    """Environment steps of the whole training, for each seed."""
    num_envs: int = 256
    """Environments stepped in parallel, over all devices."""
    unroll_length: int = 32
    """Steps of each environment between updates."""
    episode_length: int = 1000
    """Time limit of an episode, in steps; reaching it truncates."""
    num_evaluations: int = 12
    """Evaluations after the first, spread evenly, the last at the end; at most one an iteration.
    Each also writes a checkpoint."""
    evaluation_episodes: int = 64
    """Episodes in one evaluation, always without guidance and without exploration."""
    seed: int = 0
    """First seed."""
    num_seeds: int = 1
    """Seeds seed, seed + 1, ... trained in one compiled program."""
    name: str = ""
    """Name of the run folder; empty takes the first free number."""
    runs_dir: str = "runs"
    """Where run folders are kept."""
    checkpoints_kept: int = 3
    """Older checkpoints are deleted."""
    num_devices: int | None = None
    """Devices to use; None is as many as divide the environments."""
    coordinator: str | None = None
    """host:port of process 0, to train with several processes."""
    num_processes: int | None = None
    """How many processes there are."""
    process_id: int | None = None
    """Which of them this is."""
    wandb: bool = False
    """Log to Weights & Biases as well; needs the extra wandb."""

    def __post_init__(self):
        counts = ("total_steps", "num_envs", "unroll_length", "episode_length", "num_evaluations")
        counts += ("evaluation_episodes", "num_seeds", "checkpoints_kept")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.total_steps < self.num_envs * self.unroll_length:
            raise ValueError(
                f"total_steps ({self.total_steps}) must be at least num_envs * unroll_length "
                f"({self.num_envs} * {self.unroll_length}): one iteration"
            )
        if not 0 <= self.seed <= 2**31 - 1 - self.num_seeds:
            raise ValueError(f"seed ({self.seed}) must lie in [0, 2^31 - num_seeds)")
        if not re.fullmatch(r"[\w.-]*", self.name) or self.name in (".", ".."):
            raise ValueError(f"name ({self.name!r}) may hold letters, digits, '_', '-' and '.'")

    @property
    def num_iterations(self) -> int:
        """Iterations of the whole training: total_steps rounded up."""
        return -(-self.total_steps // (self.num_envs * self.unroll_length))

    @property
    def evaluation_iterations(self) -> tuple[int, ...]:
        """After which iterations an evaluation is played: `evenly_spread`."""
        return evenly_spread(self.num_evaluations, self.num_iterations)


def evenly_spread(count: int, total: int) -> tuple[int, ...]:
    """So many of the numbers 1 to `total`, at distances that differ by one at the most.

    Args:
        count: how many; all of the numbers where there are no more.
        total: the last of the numbers, and of those that are chosen.
    """
    return tuple(sorted({number * total // count for number in range(1, count + 1)} - {0}))


# What may differ when a run is taken up again: where it runs, not what it computes.
PLACEMENT = ("num_devices", "coordinator", "num_processes", "process_id", "wandb", "runs_dir")


def parse_command_line(
    kind: type[Config], arguments: Sequence[str], default: Config, program: str, description: str
) -> Config:
    """Read a command line over a default, or leave with one line and status 2.

    Args:
        kind: the dataclass; nested sections lose their prefix.
        arguments: without the program's name.
        default: what options that are not given keep.
        program: how it is called, for the help.
        description: for the help.
    """
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            config, unknown = tyro.cli(
                tyro.conf.OmitArgPrefixes[kind],  # type: ignore[valid-type]
                args=list(arguments),
                default=default,
                prog=program,
                description=description,
                return_unknown_args=True,
            )
    except SystemExit as left:
        if left.code:
            refuse(_reason(complaint.getvalue(), left.__context__))
        raise
    except ValueError as error:
        refuse(str(error))
    if unknown:
        refuse(_unknown(unknown, sorted(_option_names(default))))
    return config


def read_early(arguments: Sequence[str], names: Sequence[str] = ()) -> argparse.Namespace:
    """The options that decide what the others stand upon, read before all others.

    Args:
        arguments: without the program's name.
        names: of options with a text as their value; `config` and the flag `resume` are read too.

    Returns:
        What was given; None where an option was not.

    Raises:
        ValueError: an option lacks its value.
    """
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("config", *names):
        spelled = {f"--{name}", f"--{name.replace('_', '-')}"}
        early.add_argument(*sorted(spelled), dest=name)
    early.add_argument("--resume", action=argparse.BooleanOptionalAction)
    try:
        return early.parse_known_args(list(arguments))[0]
    except argparse.ArgumentError as error:
        raise ValueError(str(error)) from None


def refuse(reason: str) -> typing.NoReturn:
    """Say in one line on stderr what is wrong, and leave with status 2."""
    print(f"error: {reason}", file=sys.stderr)
    raise SystemExit(2)


def _option_names(config: Any) -> Iterator[str]:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _option_names(value)
            continue
        name = field.name.replace("_", "-")
        yield f"--{name}"
        if isinstance(value, bool):
            yield f"--no-{name}"


def _unknown(words: Sequence[str], known: Sequence[str]) -> str:
    """What to say of words that no option takes: those after an unknown option are its values."""
    options = [word.split("=")[0] for word in words if re.match("--?[a-zA-Z]", word)]
    if not options:
        return f"unexpected {words[0]}: --help shows what each option takes"
    told = []
    for option in options:
        near = difflib.get_close_matches(option.replace("_", "-"), known, n=2, cutoff=0.75)
        told.append(option + (f" (did you mean {' or '.join(near)}?)" if near else ""))
    return f"unknown option {', '.join(told)}; --help lists all"


def _reason(box: str, error: BaseException | None) -> str:
    """Why tyro left: the error itself where there is one, for its box breaks long words."""
    if error is None:
        return _first_sentence(box)
    reason = str(getattr(error, "message", error))
    number = re.search(r"(?:for int\(\) with base 10|string to float): '(.*)'$", reason)
    if number:
        whole = "whole " if "int()" in reason else ""
        reason = f"invalid value {number[1]}: it must be a {whole}number"
        with contextlib.suppress(ValueError, OverflowError):
            if float(number[1]).is_integer():  # 1e6
                reason += f"; write {int(float(number[1]))}"
    option = re.match(r"Error parsing (--\S+): ", _first_sentence(box))
    return f"{option[1]}: {reason}" if option else reason


def _first_sentence(box: str) -> str:
    """The message out of the box that tyro draws: title, rule, message, rule, help."""
    rows = [line.strip(" │|╭╮╰╯─-") for line in box.splitlines()]
    rows = rows[1:]  # the title
    while rows and not rows[0]:
        rows.pop(0)
    end = rows.index("") if "" in rows else len(rows)
    return " ".join(rows[:end]) or " ".join(box.split())


def read_yaml(path: str | pathlib.Path) -> dict[str, Any]:
    """A mapping from a YAML file; one without content has no options.

    Raises:
        ValueError: the file is missing, not YAML, no mapping, or has an option twice.
    """
    try:
        content = yaml.load(pathlib.Path(path).read_text(encoding="utf-8"), _OnceLoader)
    except OSError as error:
        raise ValueError(f"config ({path}) cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"config ({path}) is nested too deep to be read") from None
    # Of a scalar that is not what its tag says, YAML's loader raises whatever its conversion did.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f":{where.line + 1}" if where else ""
        if isinstance(error, _GivenTwice):
            raise ValueError(f"config ({path}{line}): {error.problem}") from None
        reason = getattr(error, "problem", None) or getattr(error, "reason", None)
        told = f": {' '.join(str(reason).split())}" if reason else ""
        raise ValueError(f"config ({path}{line}) is not YAML{told}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"config ({path}) must be a mapping of options")
    return content


class _GivenTwice(yaml.constructor.ConstructorError):
    """Of two values for one key YAML's loader would silently take the last."""


class _OnceLoader(yaml.SafeLoader):
    """Looks when a mapping is read: later `<<` puts in keys that may well be given again."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"{key.value} is given twice"
                raise _GivenTwice(None, None, problem, key.start_mark)
            seen.add(key.value)
        return node


def overlay(default: Config, values: Mapping[str, Any], where: str) -> Config:
    """A configuration with some fields replaced.

    Args:
        default: a dataclass, possibly with dataclasses as fields.
        values: nested like it; a field of a section may also stand on the top level.
        where: for messages.

    Raises:
        ValueError: an unknown option, a wrong type, or values that break a rule.
    """
    hints = typing.get_type_hints(type(default))
    sections = [name for name in hints if dataclasses.is_dataclass(getattr(default, name))]
    nested: dict[str, dict] = {name: {} for name in sections}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        home = next((s for s in sections if hasattr(getattr(default, s), str(key))), None)
        if key in sections:
            if not isinstance(value, Mapping):
                raise ValueError(f"{where}: {key} must be a mapping of options")
            nested[key] |= value
        elif key in hints:
            flat[key] = _convert(key, value, hints[key], where)
        elif home:
            nested[home][key] = value
        else:
            known = sorted(set(hints) | {n for s in sections for n in vars(getattr(default, s))})
            raise ValueError(f"{where}: unknown option {key!r}; known: {', '.join(known)}")
    changed = {s: overlay(getattr(default, s), nested[s], where) for s in sections if nested[s]}
    return dataclasses.replace(default, **flat, **changed)  # type: ignore[type-var]


_EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def _convert(name: str, value: Any, hint: Any, where: str) -> Any:
    written = value
    if isinstance(value, list):
        value = tuple(value)
    kinds = (hint, *typing.get_args(hint))
    wants_float, wants_int = float in kinds, int in kinds
    if (wants_float or wants_int) and isinstance(value, str) and _EXPONENT.fullmatch(value):
        value = float(value)  # YAML 1.1 takes 1e-3 for a string
    if wants_int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if wants_float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not is_bearable(value, hint) or (isinstance(value, bool) and hint is int):
        shown = getattr(hint, "__name__", str(hint))
        shown = str(hint) if typing.get_args(hint) else shown
        raise ValueError(f"{where}: {name} ({written!r}) must be of type {shown}")
    return value


def to_plain(config: Any) -> dict[str, Any]:
    """The configuration as YAML can hold it."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        return str(value) if isinstance(value, pathlib.Path) else value

    return plain(dataclasses.asdict(config))
