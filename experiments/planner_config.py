"""Options of `experiments.alfworld_planner`: preset, file and command line, checked together."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from envs.household.format import FORMATS
from envs.household.noisy_demonstrations import Noise
from experiments.hindsight_config import HindsightConfig
from jaxagent.agents.planner import ImitationConfig
from jaxagent.text import DEFAULT_HORIZON
from jaxagent.training.config import (
    overlay,
    parse_command_line,
    read_early,
    read_yaml,
    refuse,
    to_plain,
)
from jaxagent.training.inputs import read_inputs
from jaxagent.training.run_folder import CONFIG_FILE, open_run_folder
from jaxagent.training.sft import SFTRunConfig

PROGRAM = "python -m experiments.alfworld_planner"
DESCRIPTION = (
    "Train a planner of household games by imitation of an expert that searches, from "
    "demonstrations made while it trains."
)
STAGES = ("sft", "rl")
ALGORITHMS = ("hindsight", "own_successes")
INPUTS = ("preset", "initial", "demonstrations")  # options that may name files and folders
GOALS = ("template", "human")
SOURCES = ("auto", "alfworld", "generated")
# What may differ when a run is taken up again: where it runs, not what it computes.
_PLACEMENT = ("num_devices", "wandb", "runs_dir")


@dataclasses.dataclass(frozen=True)
class PlannerConfig:
    """Options of the household planner."""

    stage: str = "sft"
    """sft: supervised, on demonstrations of an expert; rl: from its own play, without any."""
    algorithm: str = "hindsight"
    """Of stage rl: hindsight (play is relabelled by the tasks that it achieved) or own_successes
    (games that were won, by walking at random and by playing)."""
    preset: str = "tiny"
    """tiny (about 1 M parameters, from scratch), smollm2, or hf:FOLDER (a Hugging Face model)."""
    initial: str | None = None
    """Planner to begin with instead of random weights: tiny, tiny-hierarchical or a folder."""
    style: str = "compact"
    """Text format: compact, plain, and each with -hierarchical (sub-goals in the text)."""
    source: str = "auto"
    """Games: alfworld (ALFWORLD_DATA), generated, or auto: alfworld where it is found."""
    data: str | None = None
    """Folder with the games instead of $ALFWORLD_DATA."""
    goals: str = "template"
    """Tasks as the benchmark's templates word them, or as people did (alfworld games only)."""
    generated_games: int = 1000
    """Games of the generator that are played, all of one seed."""
    generated_share: float = 0.2
    """Share of the demonstrations in generated games, beside those of the benchmark."""
    hold_out_floor_plans: bool = False
    """Keep 15 % of the floor plans out of training, and judge by them at the end."""
    renumbered_share: float = 0.7
    """Share of the demonstrations whose things bear other numbers than in the game."""
    dagger: int = 0
    """Rounds in which the planner plays and the expert labels what it visits."""
    dagger_games: int = 200
    """Games played in each of these."""
    dagger_share: float = 0.3
    """Share of the demonstrations taken from these, once there are some."""
    demonstrations: str | None = None
    """JSONL file of `python -m envs.household.demonstrations`: its episodes take part unaltered."""
    demonstrations_share: float = 0.3
    """Share of the demonstrations, --dagger's apart, drawn from that file; the rest are played."""
    lora_rank: int = 0
    """Of low-rank terms beside frozen parameters (smollm2, hf:); 0 trains all parameters."""
    dtype: str = "float32"
    """In which the layers compute: float32, or bfloat16 (for accelerators: slow on a CPU)."""
    rows: int = 4
    """Rows of a batch; each holds row_tokens tokens of whole episodes."""
    row_tokens: int = 256
    """Half as many rows, twice as long, hold the episodes that do not fit."""
    validation_games: int = 120
    """Games that the planner is chosen by, at most; none of them is trained on."""
    final_games: int = 200
    """Games of each panel that the planner is judged by at the end, at most; 0 judges not."""
    horizon: int = DEFAULT_HORIZON
    """Steps within which a game has to be won, wherever the planner plays."""
    config: str | None = None
    """YAML file of options; the command line wins over it, it wins over the preset."""
    resume: bool = False
    """Go on with a run (--name, or the newest) from its last checkpoint."""
    dry_run: bool = False
    """Print the resolved configuration and what it amounts to; train nothing, write nothing."""
    run: SFTRunConfig = dataclasses.field(default_factory=SFTRunConfig)
    imitation: ImitationConfig = dataclasses.field(default_factory=ImitationConfig)
    noise: Noise = dataclasses.field(default_factory=Noise)
    play: HindsightConfig = dataclasses.field(default_factory=HindsightConfig)

    def __post_init__(self):
        for name, known in (
            ("stage", STAGES),
            ("algorithm", ALGORITHMS),
            ("style", tuple(FORMATS)),
            ("source", SOURCES),
            ("goals", GOALS),
            ("dtype", ("float32", "bfloat16")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must be one of {', '.join(known)}"
                )
        self._check_preset()
        self._check_stage()
        for name in ("generated_games", "dagger", "lora_rank", "final_games"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 0")
        for name in ("rows", "dagger_games", "validation_games", "horizon"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        if self.row_tokens < 128:
            raise ValueError(f"row_tokens ({self.row_tokens}) must be at least 128: one episode")
        for name in ("generated_share", "renumbered_share", "dagger_share", "demonstrations_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must lie in [0, 1]")
        self._check_games()
        if not self.imitation.warmup_updates < self.run.num_updates:
            raise ValueError(
                f"warmup_updates ({self.imitation.warmup_updates}) must be less than num_updates "
                f"({self.run.num_updates})"
            )

    def _check_preset(self) -> None:
        if not self.preset.startswith("hf:") and self.preset not in ("tiny", "smollm2"):
            raise ValueError(f"preset ({self.preset}) must be tiny, smollm2 or hf:FOLDER")
        if self.preset == "tiny" and self.lora_rank:
            raise ValueError(
                f"lora_rank ({self.lora_rank}) is for smollm2 and hf:FOLDER: tiny begins from "
                "scratch"
            )
        if self.preset != "tiny" and self.initial:
            raise ValueError(f"initial ({self.initial}) is for tiny: {self.preset} has its own")
        if self.preset != "tiny" and self.style.startswith("compact"):
            raise ValueError(
                f"style ({self.style}) has a tokeniser of its own, preset ({self.preset}) another: "
                "choose plain or plain-hierarchical"
            )

    def _check_stage(self) -> None:
        default = PlannerConfig.__dataclass_fields__
        if self.stage == "sft":
            if self.algorithm != default["algorithm"].default or self.play != HindsightConfig():
                raise ValueError(
                    "algorithm and the options of play are for stage rl: stage (sft) learns from "
                    "an expert"
                )
            return
        if self.style.endswith("-hierarchical"):
            raise ValueError(
                f"style ({self.style}) needs sub-goals, which stage rl does not find: choose one "
                "without"
            )
        for name in ("dagger", "demonstrations"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} ({getattr(self, name)}) asks an expert: stage rl learns without"
                )

    def _check_games(self) -> None:
        if self.source == "generated" and not self.generated_games:
            raise ValueError("generated_games (0) must be at least 1 with source generated")
        if self.source == "generated" and self.goals == "human":
            raise ValueError("goals (human) needs games that people described: source alfworld")
        if self.source == "generated" and self.hold_out_floor_plans:
            raise ValueError("hold_out_floor_plans needs games with floor plans: source alfworld")
        if self.generated_share and self.source == "alfworld" and not self.generated_games:
            raise ValueError(
                f"generated_share ({self.generated_share}) needs generated_games of at least 1"
            )


def preset(name: str, style: str | None) -> PlannerConfig:
    """The defaults of a preset.

    Args:
        name: tiny, smollm2 or hf:FOLDER.
        style: the format, if the user has chosen one.
    """
    if name == "tiny":
        chosen = style or "compact"
        tokens = 256 if chosen.startswith("compact") else 768
        return PlannerConfig(
            preset=name,
            style=chosen,
            row_tokens=tokens,
            imitation=ImitationConfig(optimizer="muon"),
        )
    return PlannerConfig(
        preset=name,
        style=style or "plain",
        rows=8,
        row_tokens=1024,
        dtype="bfloat16",
        imitation=ImitationConfig(learning_rate=1e-4, weight_decay=0.0),
        run=SFTRunConfig(num_updates=2_000),
    )


def read_command_line(arguments: Sequence[str]) -> PlannerConfig:
    """Preset, then --config, then the command line; on a mistake one line and status 2.

    With --resume the configuration of the run stands in for the preset: what is asked for is to
    be judged beside what the run has, not beside defaults that it may not have.
    """
    try:
        known, file = _read_early(arguments)
        if known.resume:
            run = SFTRunConfig(name=known.name, runs_dir=known.runs_dir)
            begun = _begun(open_run_folder(run, "planner", True))  # type: ignore[arg-type]
            # It stands where it was found, even if that is not where it was begun.
            placed = dataclasses.replace(begun.run, name=known.name, runs_dir=known.runs_dir)
            begun = dataclasses.replace(begun, run=placed)
            default = overlay(begun, file, str(known.config))
        else:
            default = _over_preset(file, str(known.config), known.preset, known.style)
    except ValueError as error:
        refuse(str(error))
    config = parse_command_line(PlannerConfig, arguments, default, PROGRAM, DESCRIPTION)
    base = pathlib.Path(config.preset.removeprefix("hf:"))
    # A run that is taken up may have kept it.
    if config.preset.startswith("hf:") and not known.resume and not base.is_dir():
        refuse(f"preset ({config.preset}): there is no such folder")
    return config


def _read_early(arguments: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """The options that decide what the others stand upon, and the content of --config."""
    known = read_early(arguments, ("preset", "style", "name", "runs_dir"))
    file = read_yaml(known.config) if known.config else {}
    run = file.get("run")
    options = {**(run if isinstance(run, dict) else {}), **file}
    known.resume = bool(options.get("resume")) if known.resume is None else known.resume
    known.name = str(options.get("name", "")) if known.name is None else known.name
    known.runs_dir = known.runs_dir or str(options.get("runs_dir", SFTRunConfig.runs_dir))
    return known, file


def _over_preset(
    file: Mapping[str, Any], where: str, name: str | None = None, style: str | None = None
) -> PlannerConfig:
    """A file's options over the defaults of its preset, or of the one that is named."""
    chosen = style or file.get("style")
    # What is no text is refused by `overlay`, which knows what to say of it.
    base = preset(
        name or str(file.get("preset", "tiny")), chosen if isinstance(chosen, str) else None
    )
    return overlay(base, file, where)


def _begun(folder: pathlib.Path) -> PlannerConfig:
    """The configuration that a run was begun with."""
    path = folder / CONFIG_FILE
    return _over_preset(read_yaml(path), str(path))


def continued(folder: pathlib.Path, arguments: Sequence[str]) -> PlannerConfig:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Raises:
        ValueError: the command line asks for something else than was begun.
    """
    saved, asked = _begun(folder), read_command_line(arguments)
    placement = {name: getattr(asked.run, name) for name in _PLACEMENT}
    run = dataclasses.replace(saved.run, **placement)
    same = dataclasses.replace(
        saved, run=run, resume=True, dry_run=asked.dry_run, config=asked.config
    )
    asked = dataclasses.replace(
        asked, resume=True, run=dataclasses.replace(asked.run, name=saved.run.name)
    )
    wanted = _options(asked)
    for name, before in _options(same).items():
        if before != wanted[name]:
            raise ValueError(
                f"resume: {folder} was begun with {name} {before}, not {wanted[name]}; start "
                "another run to change it"
            )
    return with_inputs(same, folder)


def with_inputs(config: PlannerConfig, folder: pathlib.Path) -> PlannerConfig:
    """A run's configuration with what the run has kept in place of the originals.

    Raises:
        ValueError: something is gone.
    """
    kept = read_inputs(folder, INPUTS)
    if "preset" in kept:
        kept["preset"] = f"hf:{kept['preset']}"
    return dataclasses.replace(config, **kept)


def _options(config: PlannerConfig) -> dict[str, Any]:
    """All options by name, those of the sections too."""
    flat: dict[str, Any] = {}
    for name, value in to_plain(config).items():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
