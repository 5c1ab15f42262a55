"""Which files and folders changed, by events from the operating system.

Events only make a pass start early; passes alone must be correct. A pass takes the changes, calls
`sync` with the folders that there are, and **then** lists those that were new to `sync`: what was
made in a folder before its watch existed has no event.

Nothing here lists or opens anything. Where there is no good source of events, and where one fails,
there are no events and the mode is `poll`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol

from .changes import Changes, FolderKind, Marks

__all__ = ["Changes", "FolderKind", "Watcher"]

logger = logging.getLogger(__name__)


class _Backend(Protocol):
    """A source of events; it is alive from construction, which raises OSError, to `stop`."""

    @property
    def alive(self) -> bool:
        """Whether events still come."""
        ...

    def sync(self, folders: Mapping[str, FolderKind]) -> set[str]:
        """Watch these folders and no others; return those of them that cannot be watched."""
        ...

    def stop(self) -> None:
        """Release everything; a dead backend, too."""
        ...


def _inotify(_: Sequence[str], marks: Marks) -> _Backend:
    from watchdog.utils import UnsupportedLibcError

    try:
        from .inotify import Inotify
    except UnsupportedLibcError as error:
        raise OSError(str(error)) from None
    return Inotify(marks)


def _recursive(roots: Sequence[str], marks: Marks) -> _Backend:
    from .recursive import Recursive

    return Recursive(roots, marks)


_BACKENDS: Final[dict[str, Callable[[Sequence[str], Marks], _Backend]]] = {
    "linux": _inotify,
    "darwin": _recursive,
    "win32": _recursive,
}
"""The source of events for each `sys.platform` that has a good one (kqueue opens every file)."""


class Watcher:
    """Tells what changed under the roots. `sync` and `take` belong to one thread, the collector's.

    A watching thread that died is noticed by either of them and started again.
    """

    def __init__(
        self, roots: Sequence[str], wake: Callable[[], None], platform: str = sys.platform
    ) -> None:
        """`wake` is called, mostly in a watching thread, whenever `take` has something to give."""
        self.restarts = 0
        """How often watching was started again."""
        self._roots = roots
        self._marks = Marks(wake)
        self._make = _BACKENDS.get(platform)
        self._backend: _Backend | None = None
        self._running = False
        self._wanted: dict[str, FolderKind] = {}
        self._unwatched: frozenset[str] = frozenset()
        self._warned = False

    def start(self) -> None:
        """Begin to watch; where that fails the mode is `poll`, and it is tried again later."""
        self._running = True
        self._open()

    def stop(self) -> None:
        """End the thread and release all watches."""
        self._running = False
        if self._backend is not None:
            self._backend.stop()
            self._backend = None

    def sync(self, folders: Mapping[str, FolderKind]) -> None:
        """Watch exactly these folders. The caller lists the new ones afterwards, never before."""
        self._wanted = dict(folders)
        self._revive()
        self._apply()

    def take(self) -> Changes:
        """Return and forget what changed."""
        if self._revive():
            self._apply()
        return self._marks.take()

    @property
    def mode(self) -> Literal["events", "poll"]:
        """Whether events come; in mode `poll` the caller must look at everything by itself."""
        alive = self._backend is not None and self._backend.alive
        blind = bool(self._wanted) and len(self._unwatched) == len(self._wanted)
        return "events" if alive and not blind else "poll"

    @property
    def unwatched(self) -> frozenset[str]:
        """Folders of the last `sync` that could not be watched and must be polled."""
        return self._unwatched

    @property
    def errors(self) -> int:
        """How many events could not be handled."""
        return self._marks.errors

    def _apply(self) -> None:
        watch = self._backend.sync if self._backend is not None else set[str]
        self._unwatched = frozenset(watch(self._wanted))

    def _revive(self) -> bool:
        """Start again what is dead; return whether there is a new backend, without any watch."""
        if not self._running or (self._backend is not None and self._backend.alive):
            return False
        if self._backend is not None:
            self._backend.stop()
            self._backend = None
            self._marks.everything()
        if not self._open():
            return False
        self.restarts += 1
        self._marks.everything()
        return True

    def _open(self) -> bool:
        if self._make is None:
            return False
        try:
            self._backend = self._make(self._roots, self._marks)
        except (OSError, RuntimeError, ImportError) as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "there are no file events, folders are polled",
                    extra={"fields": {"error": str(error)}},
                )
            return False
        return True
