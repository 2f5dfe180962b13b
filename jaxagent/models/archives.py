"""Arrays in a file with a description: read as they were written, or refused in one line."""

import json
import pathlib
from typing import Any

import numpy as np


def read_archive(
    path: pathlib.Path, what: str, file_format: str
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The description and the arrays of an .npz file.

    Args:
        path: the file.
        what: it is, for messages.
        file_format: that its description must name.

    Returns:
        The description without the format, and the arrays by name.

    Raises:
        ValueError: the file cannot be read, is cut or damaged, or is of another format.
    """
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        description: Any = json.loads(str(arrays.pop("meta")))
        found = description.pop("format")
    except OSError as error:
        reason = error.strerror or _other(what, file_format)
        raise ValueError(f"{what} ({path}) cannot be read: {reason}") from None
    except Exception:  # zip, zlib and NumPy have no common base for what a bad byte causes
        raise ValueError(f"{what} ({path}) cannot be read: {_other(what, file_format)}") from None
    if found != file_format:
        told = f"{_other(what, file_format)} but {str(found)[:40]}"
        raise ValueError(f"{what} ({path}) cannot be read: {told}")
    return description, arrays


def check_finite(path: pathlib.Path, what: str, arrays: dict[str, np.ndarray]) -> None:
    """Refuse arrays that hold something else than finite numbers.

    Args:
        path: of the file, for messages.
        what: it is, for messages.
        arrays: by name.

    Raises:
        ValueError: an array does; it is named.
    """
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise ValueError(f"{what} ({path}): {name} holds {array.dtype}, not numbers")
        if not np.isfinite(array).all():
            raise ValueError(f"{what} ({path}): {name} holds numbers that are not finite")


def _other(what: str, file_format: str) -> str:
    return f"it is no {what} or not whole; it is not a file of the format {file_format}"
