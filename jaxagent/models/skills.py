"""Trained skills as small files: written from a run, loaded by name, used without a trainer."""

import dataclasses
import json
import pathlib
import typing
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
from beartype.door import is_bearable
from flax import struct
from jaxtyping import Array, Float

from jaxagent.models.archives import check_finite, read_archive
from jaxagent.models.networks import ACTIVATIONS
from jaxagent.models.normaliser import Normaliser, known_normaliser, normalise
from jaxagent.models.skill_policy import SkillPolicy

FORMAT = "jaxagent.skill.1"
SHIPPED = pathlib.Path(__file__).parent / "trained"
_SIZES = {f.name for f in dataclasses.fields(SkillPolicy)} - {"parent", "name"}


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


def skill_file(name: str | pathlib.Path) -> pathlib.Path:
    """Where a skill lies, or would lie; `name` is as of `load_skill`."""
    return pathlib.Path(name) if str(name).endswith(".npz") else SHIPPED / f"{name}.npz"


def load_skill(name: str | pathlib.Path) -> Skill:
    """A skill that is shipped with the package, or one's own.

    Args:
        name: "ant_goal" for example, or the path of a file that `save_skill` wrote.

    Raises:
        ValueError: there is no such skill, or the file is not one: cut, damaged, of another format,
            or with arrays that are not finite or not those of its policy.
    """
    path = skill_file(name)
    if not path.is_file():
        known = ", ".join(shipped_skills())
        raise ValueError(
            f"skill ({name}) must be one of {known}, an .npz file, or (on a command line) "
            "a run folder"
        )
    meta, arrays = read_archive(path, "skill", FORMAT)
    check_finite(path, "skill", arrays)
    policy = _policy(path, meta)
    tree: Any = flax.traverse_util.unflatten_dict(
        {key: jnp.asarray(value, jnp.float32) for key, value in arrays.items()}, sep="/"
    )
    statistics = tree.get("normaliser")
    _check_shapes(path, policy, arrays)
    params = SkillParams(
        policy_params={"params": tree["params"]},
        normaliser=known_normaliser(**statistics) if statistics else None,
    )
    return Skill(path.stem, policy, params, meta)


def _policy(path: pathlib.Path, meta: dict[str, Any]) -> SkillPolicy:
    """The network that a description tells; its sizes are taken out of the description."""
    sizes = meta.pop("policy", None)
    hints = typing.get_type_hints(SkillPolicy)
    if not isinstance(sizes, dict):
        raise ValueError(f"skill ({path}): its description lacks the sizes of the policy")
    sizes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in sizes.items()}
    for name, value in sizes.items():
        if name not in _SIZES or not is_bearable(value, hints[name]):
            raise ValueError(f"skill ({path}): policy {name} ({value!r}) is no size of a policy")
    if missing := {"action_size", "goal_features"} - sizes.keys():
        raise ValueError(f"skill ({path}): the policy lacks {sorted(missing)[0]}")
    if sizes.get("activation", "swish") not in ACTIVATIONS:
        raise ValueError(f"skill ({path}): activation ({sizes['activation']}) is not known")
    if "task" not in meta or "backend" not in meta:
        lacks = "task" if "task" not in meta else "backend"
        raise ValueError(f"skill ({path}): its description lacks the {lacks}")
    return SkillPolicy(**sizes)


def _observation_size(
    path: pathlib.Path, policy: SkillPolicy, arrays: dict[str, np.ndarray]
) -> int:
    """O, from the first array that tells it."""
    beside = {"normaliser/mean": 0, "params/state_encoder/Dense_0/kernel": policy.goal_features}
    beside |= {"params/MLP_0/Dense_0/kernel": 0, "params/loc/kernel": 0}
    for name, other in beside.items():
        if name in arrays and arrays[name].ndim:
            return len(arrays[name]) + other
    raise ValueError(f"skill ({path}) does not tell the size of its observations")


def _check_shapes(path: pathlib.Path, policy: SkillPolicy, arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that are not those of the policy, no fewer and no more."""
    size = _observation_size(path, policy, arrays)
    try:
        shapes: Any = jax.eval_shape(policy.init, jax.random.key(0), jnp.zeros((1, size)))
    except (TypeError, ValueError):  # of flax, for sizes that make no network
        raise ValueError(f"skill ({path}): its sizes make no policy") from None
    wanted: dict[str, Any] = {"params": shapes["params"]}
    if "normaliser/mean" in arrays:
        whole, each = jnp.zeros(()), jnp.zeros(size)
        wanted["normaliser"] = {"count": whole, "mean": each, "squared_deviation": each}
    expected: dict[str, Any] = dict(flax.traverse_util.flatten_dict(wanted, sep="/"))
    for name in sorted(arrays.keys() | expected.keys()):
        found, right = (
            list(at[name].shape) if name in at else "nothing" for at in (arrays, expected)
        )
        if found != right:
            raise ValueError(f"skill ({path}): {name} has shape {found}, its policy has {right}")


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
    sizes = {k: v for k, v in sizes.items() if k in _SIZES}
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
