"""What a watcher tells: which files and folders changed, collected across threads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto

logger = logging.getLogger(__name__)


class FolderKind(Enum):
    """What matters in a folder."""

    PARENT = auto()
    """Only that folders come, go or move in it: a root, its `tmp/`, a project folder."""
    FILES = auto()
    """Its files as well: `chats/` and the folders of subagents in it."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since the last `take`; bytes of a path that are not UTF-8 are surrogates."""

    files: frozenset[str] = frozenset()
    """Files in FILES folders that were made, written, moved or deleted."""
    folders: frozenset[str] = frozenset()
    """Folders to list again: a folder in them, or they themselves, came, went or moved."""
    everything: bool = False
    """Events were lost: look at everything."""


class Marks:
    """Collects changes from the watching threads and wakes whoever takes them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """`wake` is called in the thread that marked something."""
        self.errors = 0
        """How many events could not be handled."""
        self._wake = wake
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._everything = False

    def file(self, path: str) -> None:
        """Note that a file was made, written, moved or deleted."""
        with self._lock:
            self._files.add(path)
        self._wake()

    def folder(self, path: str) -> None:
        """Note that a folder has to be listed again."""
        with self._lock:
            self._folders.add(path)
        self._wake()

    def everything(self) -> None:
        """Note that events were lost."""
        with self._lock:
            self._everything = True
        self._wake()

    def take(self) -> Changes:
        """Return and forget what was noted."""
        with self._lock:
            changes = Changes(frozenset(self._files), frozenset(self._folders), self._everything)
            self._files.clear()
            self._folders.clear()
            self._everything = False
        return changes

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Keep an exception from the watching thread, which would end by it; log only the first."""
        try:
            yield
        except Exception:
            self.errors += 1
            if self.errors == 1:
                logger.exception("a file event could not be handled; further ones are only counted")
