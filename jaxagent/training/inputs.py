"""The files that a run depends on: kept in its folder when it begins, read from there ever after.

A plan, a recording, a skill: what is small is copied into `inputs/`, of what is large the hash is
kept and compared. So an original that is edited or moved does not change a run that is taken up
again or evaluated.
"""

import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax.experimental import multihost_utils

FOLDER, MANIFEST = "inputs", "inputs.json"
COPIED_UP_TO = 64 * 2**20  # bytes


class Written(NamedTuple):
    """A file that is made of something else: how its name ends, and what writes it."""

    suffix: str
    write: Callable[[pathlib.Path], object]


# A file or a folder; those files of a folder that count, the first of them directly in it; or a
# file to be written.
Source = pathlib.Path | Sequence[pathlib.Path] | Written


def keep_inputs(
    folder: pathlib.Path, sources: Mapping[str, Source], given: Mapping[str, str]
) -> None:
    """Keep what a new run depends on, on process 0; what was kept there before is replaced.

    Args:
        folder: of the run.
        sources: by option.
        given: the value of each option, for messages.

    Raises:
        ValueError: something cannot be read.
    """
    if sources and jax.process_index() == 0:
        draft, place = folder / f"{FOLDER}.part", folder / FOLDER
        for old in (draft, place):
            shutil.rmtree(old, ignore_errors=True)
        draft.mkdir(parents=True)
        kept = {name: _keep(draft, name, source, given[name]) for name, source in sources.items()}
        (draft / MANIFEST).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        draft.replace(place)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices("inputs")


def read_inputs(folder: pathlib.Path, options: Sequence[str]) -> dict[str, str]:
    """Where the run finds what it has kept.

    Args:
        folder: of the run.
        options: that are needed; those of which nothing was kept are left out.

    Returns:
        A path by option.

    Raises:
        ValueError: what was kept is no longer what it was.
    """
    manifest = _read_manifest(folder)
    return {name: _checked(folder, name, manifest[name]) for name in options if name in manifest}


def run_files(folder: pathlib.Path) -> list[pathlib.Path]:
    """What there has to be of another run's folder to load its last checkpoint.

    Raises:
        ValueError: it is no run folder, or has no checkpoint.
    """
    steps = [int(path.name) for path in folder.glob("checkpoints/*") if path.name.isdecimal()]
    if not steps or not (folder / "config.yaml").exists():
        lacking = "checkpoints" if not steps else "config.yaml"
        raise ValueError(f"{folder} is not a run folder: it has no {lacking}")
    parts = [folder / "config.yaml", folder / "plan.json", folder / FOLDER]
    parts.append(folder / "checkpoints" / str(max(steps)))
    return [file for part in parts for file in _files(part)]


def _keep(draft: pathlib.Path, name: str, source: Source, given: str) -> dict[str, Any]:
    if isinstance(source, Written):
        target = draft / (name + source.suffix)
        source.write(target)
        entry = {"given": given, "kept": target.name, "files": [""]}
        return entry | {"sha256": _digest(target, [target])}
    root, files = _listed(name, source)
    places = _relative(root, files)
    try:
        # The files are named: whoever reads them may add others of its own.
        entry = {"given": given, "files": places, "sha256": _digest(root, files)}
        if sum(file.stat().st_size for file in files) > COPIED_UP_TO:
            return entry | {"at": str(root.absolute())}
        target = draft / (name + root.suffix if root.is_file() else name)
        for file, place in zip(files, places):
            copy = target / place if root.is_dir() else target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)
    except OSError as error:
        raise ValueError(f"{name} ({given}) cannot be read: {error.strerror}") from None
    return entry | {"kept": target.name}


def _listed(
    name: str, source: pathlib.Path | Sequence[pathlib.Path]
) -> tuple[pathlib.Path, list[pathlib.Path]]:
    """The file or folder, and the files that count."""
    if isinstance(source, pathlib.Path):
        return source, list(_files(source))
    if not source:
        raise ValueError(f"{name}: there are no files to keep")
    return source[0].parent, list(source)


def _files(path: pathlib.Path) -> Iterator[pathlib.Path]:
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file())
    elif path.exists():
        yield path


def _relative(root: pathlib.Path, files: Sequence[pathlib.Path]) -> list[str]:
    return ["" if file == root else file.relative_to(root).as_posix() for file in files]


def _digest(root: pathlib.Path, files: Sequence[pathlib.Path]) -> str:
    """Of names and contents."""
    total = hashlib.sha256()
    for name, file in sorted(zip(_relative(root, files), files)):
        with file.open("rb") as opened:
            content = hashlib.file_digest(opened, "sha256").hexdigest()
        total.update(f"{name}\0{content}\n".encode())
    return total.hexdigest()


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
    path = folder / FOLDER / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        raise ValueError(f"{path} cannot be read: it is not JSON") from None
    fields = {"given", "sha256", "files"}
    if not isinstance(manifest, dict) or not all(
        isinstance(entry, dict) and fields < entry.keys() and {"kept", "at"} & entry.keys()
        for entry in manifest.values()
    ):
        raise ValueError(f"{path} does not say what the run was begun with")
    return manifest


def _checked(folder: pathlib.Path, name: str, entry: Mapping[str, Any]) -> str:
    """The path of what was kept, if it is still that."""
    is_copy = "kept" in entry
    path = folder / FOLDER / entry["kept"] if is_copy else pathlib.Path(entry["at"])
    files = [path / place if place else path for place in entry["files"]]
    what = f"{name} ({path if is_copy else entry['given']})"
    try:
        found = _digest(path, files)
    except OSError:
        found = None
    if found is None:
        raise ValueError(f"{what} is gone: the run in {folder} was begun with it and needs it")
    if found != entry["sha256"]:
        raise ValueError(f"{what} is no longer what the run in {folder} was begun with")
    return str(path)
