"""Options of `experiments.ant_guidance`: preset, file and command line, checked together."""

import dataclasses
import pathlib
from collections.abc import Sequence

from envs.ant import TASKS
from envs.brax_env import BACKENDS
from jaxagent.agents.ppo import PPOConfig
from jaxagent.planning.backends import check_planner, is_language_model
from jaxagent.planning.guidance import GuidanceConfig
from jaxagent.training.config import (
    RunConfig,
    overlay,
    parse_command_line,
    read_early,
    read_yaml,
    refuse,
)
from jaxagent.training.inputs import read_inputs
from jaxagent.training.run_folder import CONFIG_FILE
from jaxagent.training.run_folder import continued as taken_up

PROGRAM = "python -m experiments.ant_guidance"
DESCRIPTION = (
    "Train a Brax Ant with action guidance: R_total = R_env + lambda * R_guidance. Every "
    "evaluation is without guidance."
)
PRESETS = ("auto", "cpu", "gpu")
INPUTS = ("planner", "distill_from")  # options that may name files and folders


@dataclasses.dataclass(frozen=True)
class AntConfig:
    """Options of the Ant with action guidance."""

    task: str = "run"
    """run (Brax's reward) or corner (sparse: arrive within 1 m of (10, 10) metres)."""
    backend: str = "spring"
    """Physics: spring, positional, generalized or mjx."""
    planner: str = "rule"
    """Who plans sub-goals for the plan terms: rule (a straight line), a YAML / JSON file, or a
    language model: smollm2-135m, a Hugging Face folder, a .gguf file, openai or openai:MODEL
    (OPENAI_API_KEY, OPENAI_BASE_URL and OPENAI_MODEL are read from the environment)."""
    replan_patience: int = 3
    """Evaluations without progress along its plan after which a language model is asked again."""
    planner_wait: bool = False
    """Stand still at evaluations until a language model has answered: runs can be repeated."""
    preset: str = "auto"
    """Sizes for cpu or gpu; auto is gpu where there is an accelerator."""
    config: str | None = None
    """YAML file of options; the command line wins over it, it wins over the preset."""
    compare: bool = False
    """Train the same seeds a second time without guidance, and draw both."""
    removal_test: int = 0
    """Train on without guidance for this many iterations at the end, and report the drop."""
    distill_from: str | None = None
    """Run folder of a trained teacher: learn from R_env and KL to the teacher, unguided."""
    resume: bool = False
    """Go on with a run (--name, or the newest) from its last checkpoint."""
    dry_run: bool = False
    """Print the resolved configuration and what it amounts to; train nothing, write nothing."""
    run: RunConfig = dataclasses.field(default_factory=RunConfig)
    ppo: PPOConfig = dataclasses.field(default_factory=PPOConfig)
    guidance: GuidanceConfig = dataclasses.field(default_factory=GuidanceConfig)

    def __post_init__(self):
        for name, known in (("task", TASKS), ("backend", BACKENDS), ("preset", PRESETS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must be one of {', '.join(known)}"
                )
        if self.removal_test < 0:
            raise ValueError(f"removal_test ({self.removal_test}) must be at least 0")
        if self.compare and self.distill_from:
            raise ValueError("compare and distill_from cannot be combined: a student is unguided")
        if self.compare and self.removal_test:
            raise ValueError("compare and removal_test cannot be combined: choose one")
        self.ppo.check_batch(self.run.num_envs, self.run.unroll_length)
        self._check_model()

    @property
    def asks_model(self) -> bool:
        """Whether a language model plans."""
        return is_language_model(self.planner)

    def _check_model(self) -> None:
        if self.replan_patience < 1:
            raise ValueError(f"replan_patience ({self.replan_patience}) must be at least 1")
        if not self.asks_model:
            if self.planner_wait or self.replan_patience != AntConfig.replan_patience:
                raise ValueError(
                    f"planner_wait and replan_patience need a language model, not planner "
                    f"({self.planner})"
                )
            return
        if self.task != "corner" or not self.guidance.needs_plan:
            raise ValueError(
                f"planner ({self.planner}) needs task corner, not {self.task}, and guidance_terms "
                f"that read a plan, not {', '.join(self.guidance.guidance_terms) or 'none'}"
            )
        if self.distill_from:
            raise ValueError(
                f"planner ({self.planner}) and distill_from cannot be combined: a student is "
                "unguided"
            )

    @property
    def num_updates(self) -> int:
        """Updates that the learning-rate schedules stretch over; a removal test needs some."""
        return self.run.num_iterations + self.removal_test


def preset(name: str, task: str) -> AntConfig:
    """The defaults for a kind of machine and a task.

    Args:
        name: "cpu" or "gpu".
        task: decides which guidance is on: velocity for run, the plan for corner.
    """
    sizes = {
        "cpu": RunConfig(total_steps=2_000_000, num_envs=256, unroll_length=16),
        "gpu": RunConfig(total_steps=30_000_000, num_envs=2048, unroll_length=16),
    }
    minibatches = {"cpu": 4, "gpu": 16}
    # To run, a horizon of 1.7 simulated seconds is enough and learns faster; not to fall on the
    # way to a point 14 metres away needs more.
    discount = {"run": 0.97, "corner": 0.99}
    terms = {"run": ("velocity_saturated",), "corner": ("plan",)}
    return AntConfig(
        task=task,
        preset=name,
        run=sizes[name],
        ppo=PPOConfig(num_minibatches=minibatches[name], discount_factor=discount[task]),
        guidance=GuidanceConfig(guidance_terms=terms[task]),
    )


def read_command_line(arguments: Sequence[str], machine: str) -> AntConfig:
    """Preset, then --config, then the command line; on a mistake one line and status 2.

    Args:
        arguments: without the program's name.
        machine: the preset that auto stands for, "cpu" or "gpu".
    """
    try:
        known = read_early(arguments, ("task", "preset", "planner"))
        file = read_yaml(known.config) if known.config else {}
        planner = known.planner or file.get("planner")
        resumes = file.get("resume") if known.resume is None else known.resume
        # A run that is taken up has kept what its planner reads; here it may be gone.
        if isinstance(planner, str) and not resumes:
            check_planner(planner)
        task = known.task or str(file.get("task", "run"))
        chosen = known.preset or str(file.get("preset", "auto"))
        chosen = machine if chosen == "auto" else chosen
        if task not in TASKS or chosen not in PRESETS:
            AntConfig(task=task, preset=chosen)  # says which is wrong
        default = overlay(preset(chosen, task), file, str(known.config))
    except ValueError as error:
        refuse(str(error))
    return parse_command_line(AntConfig, arguments, default, PROGRAM, DESCRIPTION)


def read_config(folder: pathlib.Path, needed: Sequence[str] = ()) -> AntConfig:
    """The configuration of a run, as its folder has it, with what it has kept for its own.

    Args:
        folder: of the run, or of an arm.
        needed: of `INPUTS`; they are looked at. A plan that is a file is always needed.

    Raises:
        ValueError: there is none, none of this experiment's, or what it needs is gone.
    """
    path = folder / CONFIG_FILE
    return _with_inputs(overlay(AntConfig(), read_yaml(path), str(path)), folder, needed)


def _with_inputs(config: AntConfig, folder: pathlib.Path, needed: Sequence[str]) -> AntConfig:
    options = {*needed, *(() if config.asks_model else ("planner",))}
    return dataclasses.replace(config, **read_inputs(folder, sorted(options)))


def continued(folder: pathlib.Path, arguments: Sequence[str]) -> AntConfig:
    """The configuration of a run that is taken up again: its own, only placed anew.

    Raises:
        ValueError: the command line asks for something else than was begun.
    """
    path = folder / CONFIG_FILE
    saved = overlay(AntConfig(), read_yaml(path), str(path))
    config = taken_up(saved, folder, arguments, PROGRAM, DESCRIPTION)
    return _with_inputs(config, folder, INPUTS)
