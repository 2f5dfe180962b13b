"""Checkpoints: the whole state of a run, written atomically, read back strictly."""

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

FORMAT = "jaxagent.state.1"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message gives its path and the reason."""


class Checkpoints:
    """The checkpoints of one run, numbered by iteration.

    Orbax writes into a temporary folder and renames it when complete, so that a process killed
    at any moment leaves the checkpoints before it untouched.
    """

    def __init__(self, folder: pathlib.Path, kept: int):
        """Open, or start, the checkpoints in a folder.

        Args:
            folder: the run's checkpoint folder.
            kept: older ones are deleted.
        """
        self.folder = folder.absolute()
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=kept, enable_async_checkpointing=False, create=True
            ),
        )

    def save(self, iteration: int, state: Any, host: dict[str, Any]) -> None:
        """Write a checkpoint; returns when it is on the disk. Collective over processes.

        Args:
            iteration: its number; one that exists already is left alone.
            state: a pytree of arrays.
            host: what the host loop needs to go on, as JSON.
        """
        if iteration in self._manager.all_steps():
            return
        arrays = _named_arrays(state)
        meta = {"format": FORMAT, "arrays": _signature(arrays), "host": host}
        self._manager.save(
            iteration,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(arrays),  # type: ignore[call-arg]
                meta=ocp.args.JsonSave(meta),  # type: ignore[call-arg]
            ),
        )
        self._manager.wait_until_finished()

    def latest(self) -> int | None:
        """Number of the last complete checkpoint."""
        return self._manager.latest_step()

    def restore(
        self, like: Any, shardings: Any, iteration: int | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Read a checkpoint onto the devices of this run, however many wrote it.

        Args:
            like: a pytree of arrays or of their shapes.
            shardings: the same tree, of the placement of each.
            iteration: which; None is the last complete one.

        Returns:
            The state, and what the host saved beside it.

        Raises:
            CheckpointError: there is none, it is damaged, or it is of another configuration.
        """
        iteration = self.latest() if iteration is None else iteration
        path = self.folder / str(iteration)
        if iteration is None or not path.is_dir():
            there = ", ".join(map(str, sorted(self._manager.all_steps())))
            which = "" if iteration is None else f" {iteration}; there are {there or 'none'}"
            raise CheckpointError(f"{self.folder}: there is no complete checkpoint{which}")
        meta = self._read_meta(path)
        wanted = _named_arrays(like, shardings)
        _compare(path, meta["arrays"], _signature(wanted))
        try:
            restored = self._manager.restore(
                iteration,
                args=ocp.args.Composite(state=ocp.args.StandardRestore(wanted)),  # type: ignore
            )
        except Exception as error:  # tensorstore has no common base for what a bad byte causes
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise CheckpointError(f"{path}: damaged checkpoint: {reason}") from error
        return _rebuild(like, restored["state"]), meta["host"]

    def close(self) -> None:
        """Let go of the folder."""
        self._manager.close()

    def _read_meta(self, path: pathlib.Path) -> dict[str, Any]:
        try:
            meta = json.loads((path / "meta" / "metadata").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise CheckpointError(f"{path}: no readable description of a checkpoint") from error
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            found = meta.get("format") if isinstance(meta, dict) else type(meta).__name__
            raise CheckpointError(f"{path}: format {found!r} is not {FORMAT!r}")
        return meta


def _named_arrays(tree: Any, shardings: Any = None) -> dict[str, Any]:
    """Leaves by their path in the tree; key arrays as the integers underneath.

    Names, not tree structure, are what a checkpoint holds: it can then be read without the
    classes that wrote it, and a difference can be named.
    """
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    places = [None] * len(leaves) if shardings is None else jax.tree.leaves(shardings)
    arrays = {}
    for (path, leaf), place in zip(leaves, places, strict=True):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = _key_bits(leaf)
        if place is not None:
            leaf = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)
        arrays[jax.tree_util.keystr(path)] = leaf
    return arrays


def _key_bits(keys):
    if isinstance(keys, jax.Array):
        return jax.random.key_data(keys)
    return jax.eval_shape(jax.random.key_data, keys)


def _rebuild(like: Any, arrays: dict[str, jax.Array]) -> Any:
    def place(path, leaf):
        value = arrays[jax.tree_util.keystr(path)]
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(value)
        return value

    return jax.tree_util.tree_map_with_path(place, like)


def _signature(arrays: dict[str, Any]) -> dict[str, str]:
    return {name: f"{np.dtype(x.dtype)}{list(x.shape)}" for name, x in arrays.items()}


def _compare(path: pathlib.Path, found: dict[str, str], wanted: dict[str, str]) -> None:
    for name in sorted(found.keys() | wanted.keys()):
        here, there = found.get(name, "nothing"), wanted.get(name, "nothing")
        if here != there:
            raise CheckpointError(
                f"{path}: belongs to another configuration: {name} is {here}, this run has {there}"
            )
