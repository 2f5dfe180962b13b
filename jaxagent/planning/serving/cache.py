"""Answers that were given before: in memory, least recently used first out, and on disk."""

import hashlib
import json
import logging
import os
import pathlib
import tempfile
import threading
from collections import Counter, OrderedDict
from typing import Any

_FORMAT = 1
_log = logging.getLogger(__name__)


class AnswerCache:
    """Plain data by key; safe to share between threads, and the folder between processes.

    An entry on disk is one file, written whole or not at all. What cannot be read is counted, said
    in one line and ignored; the next answer to the same question takes its place.
    """

    def __init__(self, capacity: int = 4096, folder: str | pathlib.Path | None = None):
        """Open the cache.

        Args:
            capacity: entries kept in memory; those on disk are not bounded.
            folder: made if it is not there; None keeps nothing on disk.

        Raises:
            ValueError: capacity below 1, or a folder that cannot be made.
        """
        if capacity < 1:
            raise ValueError(f"capacity ({capacity}) must be at least 1")
        self._capacity = capacity
        self._folder = pathlib.Path(folder) if folder else None
        self._memory: OrderedDict[str, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        if self._folder:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ValueError(f"cache folder ({folder}): {error.strerror}") from None

    def get(self, key: str) -> Any | None:
        """The answer to a question asked before; None if there is none."""
        with self._lock:
            if key in self._memory:
                self._memory.move_to_end(key)
                self.counts["memory"] += 1
                return self._memory[key]
        data = self._read(key)
        with self._lock:
            self.counts["misses" if data is None else "disk"] += 1
            if data is not None:
                self._keep(key, data)
        return data

    def put(self, key: str, data: Any) -> None:
        """Remember an answer.

        Args:
            key: everything that the answer depends on.
            data: what JSON can hold, not None.
        """
        with self._lock:
            self._keep(key, data)
        if self._folder:
            try:
                self._write(key, data)
            except OSError as error:
                with self._lock:
                    self.counts["unwritten"] += 1
                    first = self.counts["unwritten"] == 1
                if first:  # a full disk must not stop a run, nor fill its terminal
                    _log.warning("answers are not kept on disk: %s", error)

    def _keep(self, key: str, data: Any) -> None:
        self._memory[key] = data
        self._memory.move_to_end(key)
        while len(self._memory) > self._capacity:
            self._memory.popitem(last=False)

    def _path(self, folder: pathlib.Path, key: str) -> pathlib.Path:
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return folder / f"{name}.json"

    def _read(self, key: str) -> Any | None:
        if self._folder is None:
            return None
        path = self._path(self._folder, key)
        try:
            entry = json.loads(path.read_bytes())
            if entry["format"] != _FORMAT or entry["key"] != key or entry["answer"] is None:
                raise ValueError("it belongs to another question or version")
            return entry["answer"]
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            self.forget(key, f"{path.name} cannot be used ({type(error).__name__})")
            return None

    def forget(self, key: str, why: str) -> None:
        """Drop an entry whose content is of no use.

        Args:
            key: of the entry.
            why: said in one line.
        """
        with self._lock:
            self.counts["corrupted"] += 1
            self._memory.pop(key, None)
        _log.warning("cached answer ignored: %s", why)

    def _write(self, key: str, data: Any) -> None:
        folder = self._folder
        if folder is None:
            return
        text = json.dumps({"format": _FORMAT, "key": key, "answer": data})
        handle, draft = tempfile.mkstemp(".tmp", dir=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(draft, self._path(folder, key))
        except BaseException:
            pathlib.Path(draft).unlink(missing_ok=True)
            raise
