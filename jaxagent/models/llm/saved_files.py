"""Folders of several files that are written together: all of them new, or all of them old."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
"""Where a folder's parameters may lie."""

MODEL_FILES = (
    *WEIGHT_FILES,
    "generation_config.json",
    "adapter_config.json",
    "adapter_model.*",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates",
)
"""What describes a model in a Hugging Face folder beside its config.json: one of these that an
earlier save left would be read with, or instead of, the new ones."""

ADAPTER_FILES = ("adapter_model.*",)
"""The same of an adapter beside its adapter_config.json."""

_UNFINISHED = ".saving-"


@contextlib.contextmanager
def replaced_files(folder: Path, *, last: str, replaced: Sequence[str]) -> Iterator[Path]:
    """A folder to write into, whose files then take the place of those of another.

    Until all are written the old ones stay as they are. While they are exchanged the file `last`,
    without which nothing is loaded, is missing: a process that dies in between leaves a folder
    that is refused, never old files beside new ones.

    Args:
        folder: made if it is missing; files of other names stay.
        last: name of the file that arrives after all others.
        replaced: patterns of the names that go where no new file has them.

    Yields:
        The folder to write into; it is removed if that fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder, prefix=_UNFINISHED))
    try:
        yield made
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    (folder / last).unlink(missing_ok=True)
    for pattern in (*replaced, f"{_UNFINISHED}*"):
        for old in folder.glob(pattern):
            if old != made:
                _remove(old)
    for file in sorted(made.iterdir(), key=lambda file: (file.name == last, file.name)):
        target = folder / file.name
        if target.is_dir():
            _remove(target)
        file.replace(target)
    made.rmdir()


def unfinished_save(folder: Path) -> Path | None:
    """Where a save that was cut off left its files, if one was."""
    return next(folder.glob(f"{_UNFINISHED}*"), None)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
