"""Trained skills as small files: written from a run, loaded by name, used without a trainer."""

import dataclasses
import json
import pathlib
from typing import Any

import flax.traverse_util
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float

from jaxagent.models.normaliser import Normaliser, known_normaliser, normalise
from jaxagent.models.skill_policy import SkillPolicy

FORMAT = "jaxagent.skill.1"
SHIPPED = pathlib.Path(__file__).parent / "trained"


class SkillParams(struct.PyTreeNode, kw_only=True):
    """What a skill has learnt."""

    policy_params: Any
    normaliser: Normaliser | None  # None where the policy takes observations as they are


@dataclasses.dataclass(frozen=True)
class Skill:
    """A goal-conditioned policy that was trained.

    Attributes:
        name: of the file, without its ending.
        policy: the network.
        params: what it has learnt.
        meta: task, backend, threshold, command, seed and whatever else its maker noted.
    """

    name: str
    policy: SkillPolicy
    params: SkillParams
    meta: dict[str, Any]

    def distribution(
        self, params: SkillParams, observation: Float[Array, "*B O"]
    ) -> tuple[Float[Array, "*B A"], Float[Array, "*B A"]]:
        """(loc, scale) of the action before tanh, for any parameters of this skill's shape."""
        if params.normaliser is not None:
            observation = normalise(params.normaliser, observation)
        distribution: Any = self.policy.apply(params.policy_params, observation)
        return distribution

    def act(self, observation: Float[Array, "*B O"]) -> Float[Array, "*B A"]:
        """The deterministic action for what `GoalSpec.see` makes of features and a goal."""
        return jnp.tanh(self.distribution(self.params, observation)[0])


def shipped_skills() -> tuple[str, ...]:
    """Names that `load_skill` knows."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.npz")))


def load_skill(name: str | pathlib.Path) -> Skill:
    """A skill that is shipped with the package, or one's own.

    Args:
        name: "ant_goal" for example, or the path of a file that `save_skill` wrote.

    Raises:
        ValueError: there is no such skill, or the file is not one.
    """
    path = pathlib.Path(name) if str(name).endswith(".npz") else SHIPPED / f"{name}.npz"
    if not path.is_file():
        known = ", ".join(shipped_skills())
        raise ValueError(
            f"skill ({name}) must be one of {known}, an .npz file, or (on a command line) "
            "a run folder"
        )
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        meta: dict[str, Any] = json.loads(str(arrays.pop("meta")))
        if meta.pop("format") != FORMAT:
            raise ValueError
        sizes: dict[str, Any] = meta.pop("policy")
    except (OSError, ValueError, KeyError):
        raise ValueError(f"skill ({path}) is not a file of the format {FORMAT}") from None
    tree: Any = flax.traverse_util.unflatten_dict(
        {key: jnp.asarray(value, jnp.float32) for key, value in arrays.items()}, sep="/"
    )
    statistics = tree.get("normaliser")
    params = SkillParams(
        policy_params={"params": tree["params"]},
        normaliser=known_normaliser(**statistics) if statistics else None,
    )
    sizes = {k: tuple(v) if isinstance(v, list) else v for k, v in sizes.items()}
    return Skill(path.stem, SkillPolicy(**sizes), params, meta)


def save_skill(
    path: pathlib.Path, policy: SkillPolicy, params: SkillParams, meta: dict[str, Any]
) -> None:
    """Write a skill, whole or not at all.

    Args:
        path: ends in .npz.
        policy: the network.
        params: host or device arrays.
        meta: as JSON can hold it; format and network are added.
    """
    if path.suffix != ".npz":
        raise ValueError(f"file ({path}) must end in .npz")
    sizes = {f.name: getattr(policy, f.name) for f in dataclasses.fields(policy)}
    sizes = {k: v for k, v in sizes.items() if k not in ("parent", "name")}
    tree: dict[str, Any] = {"params": params.policy_params["params"]}
    if params.normaliser is not None:
        tree["normaliser"] = {
            name: getattr(params.normaliser, name)
            for name in ("count", "mean", "squared_deviation")
        }
    arrays = flax.traverse_util.flatten_dict(tree, sep="/")
    described = json.dumps(meta | {"format": FORMAT, "policy": sizes})
    content: dict[str, Any] = {key: np.asarray(x, np.float32) for key, x in arrays.items()}
    draft = path.with_suffix(".tmp.npz")
    np.savez_compressed(draft, meta=np.array(described), **content)
    draft.replace(path)
