"""Which files and folders changed, by events from the operating system.

Events only make a pass start early; passes alone must be correct. A pass takes the changes, calls
`sync` with the folders that there are, and **then** lists those that were new to `sync`: what was
made in a folder before its watch existed has no event.

This module lists and opens nothing. On Linux it is one inotify instance with one thread and one
watch per folder; on macOS and Windows one recursive watch per root, whose events are filtered; on
other systems, and where that fails, there are no events and the mode is `poll`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Literal, Protocol, cast

from watchdog import events
from watchdog.utils import UnsupportedLibcError

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import CallbackId, InotifyEvent, WatchDescriptor

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT: Final = 2.0
"""Seconds that a watching thread gets to end; it is a daemon and may be left behind."""

_KINDS: Final[list[type[events.FileSystemEvent]]] = [
    *(events.FileCreatedEvent, events.FileModifiedEvent),
    *(events.FileMovedEvent, events.FileDeletedEvent),
    *(events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent),
]
"""Opening, reading and closing a file are none of them: our own reading must not make events."""


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


class _Marks:
    """Collects changes from the watching threads and wakes whoever takes them."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.errors = 0
        self._wake = wake
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._folders: set[str] = set()
        self._everything = False

    def file(self, path: str) -> None:
        with self._lock:
            self._files.add(path)
        self._wake()

    def folder(self, path: str) -> None:
        with self._lock:
            self._folders.add(path)
        self._wake()

    def everything(self) -> None:
        with self._lock:
            self._everything = True
        self._wake()

    def take(self) -> Changes:
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


class _Inotify:
    """Watchdog's inotify thread with a watch per folder, so that no other folder makes events."""

    def __init__(self, roots: Sequence[str], marks: _Marks) -> None:
        from watchdog.observers.inotify_c import InotifyConstants as In
        from watchdog.observers.inotify_c import InotifyFD, Mask

        self._marks = marks
        self._watched: dict[str, _WatchedFolder] = {}
        self._warned = False
        # Two names of one folder share its watch: the second must not take from the mask.
        always = In.IN_ONLYDIR | In.IN_MASK_ADD | In.IN_CREATE | In.IN_DELETE | In.IN_MOVE
        itself = In.IN_DELETE_SELF | In.IN_MOVE_SELF
        self._masks = {
            FolderKind.PARENT: Mask(always | itself),
            FolderKind.FILES: Mask(always | itself | In.IN_MODIFY | In.IN_EXCL_UNLINK),
        }
        self._lost = itself | In.IN_UNMOUNT
        self._inotify = InotifyFD()
        self._inotify.name = "watcher"
        self._inotify.start()

    @property
    def alive(self) -> bool:
        return self._inotify.is_alive()

    def sync(self, folders: Mapping[str, FolderKind]) -> set[str]:
        # A watch follows its folder to a new name, and so do those of the folders in it.
        lost = {folder.path for folder in self._watched.values() if folder.lost}
        inside = tuple(path + os.sep for path in lost)
        leaving = [
            folder
            for path, folder in self._watched.items()
            if path in lost or path.startswith(inside) or folders.get(path) is not folder.kind
        ]
        for folder in leaving:
            del self._watched[folder.path]
            self._remove(folder)
        new = [(path, kind) for path, kind in folders.items() if path not in self._watched]
        return {path for path, kind in new if not self._add(path, kind)}

    def stop(self) -> None:
        for folder in self._watched.values():
            folder.lost = True  # closing reports each watch as deleted
        self._inotify.stop()
        self._inotify.join(_JOIN_TIMEOUT)

    def _add(self, path: str, kind: FolderKind) -> bool:
        folder = _WatchedFolder(path, kind, self._lost, self._marks)
        mask, name = self._masks[kind], os.fsencode(path)
        try:
            folder.watch = self._inotify.add_callback(name, mask, folder, folder.id)
        except OSError as error:
            if error.errno == errno.ENOSPC and not self._warned:
                self._warned = True
                remedy = "raise the sysctl fs.inotify.max_user_watches"
                logger.warning(
                    "the limit of inotify watches is reached, some folders are polled",
                    extra={"fields": {"remedy": remedy}},
                )
            return False
        if folder.watch == -1:  # no permission; watchdog registers it all the same
            self._remove(folder)
            return False
        self._watched[path] = folder
        return True

    def _remove(self, folder: _WatchedFolder) -> None:
        self._inotify.remove_callbacks([(folder.watch, folder.id)])


class _WatchedFolder:
    """Watchdog's callback for one folder; called in the inotify thread."""

    def __init__(self, path: str, kind: FolderKind, lost_mask: int, marks: _Marks) -> None:
        self.path = path
        self.kind = kind
        self.lost = False
        """Deleted, moved or unmounted: whatever has this path now needs a new watch."""
        self.id = cast("CallbackId", id(self))
        self.watch: WatchDescriptor
        self._lost_mask = lost_mask
        self._marks = marks

    def on_event(self, event: InotifyEvent) -> None:
        with self._marks.guard():
            if event.mask & self._lost_mask:
                self._lose()
            elif event.is_directory:
                self._marks.folder(self.path)
            elif self.kind is FolderKind.FILES:
                self._marks.file(os.path.join(self.path, os.fsdecode(event.name)))

    def on_watch_deleted(self, wd: WatchDescriptor) -> None:
        with self._marks.guard():
            self._lose()

    def on_queue_overflow(self) -> None:
        with self._marks.guard():
            self._marks.everything()

    def _lose(self) -> None:
        if not self.lost:
            self.lost = True
            self._marks.folder(self.path)


class _Recursive(events.FileSystemEventHandler):
    """Watchdog's observer with one recursive watch per root, where the kernel watches subtrees."""

    def __init__(self, roots: Sequence[str], marks: _Marks) -> None:
        from watchdog.observers import Observer

        self._marks = marks
        self._folders: Mapping[str, FolderKind] = {}
        self._real = {root: os.path.realpath(root) for root in roots}
        self._watched: set[str] = set()
        self._observer = Observer()
        self._observer.start()

    @property
    def alive(self) -> bool:
        # An emitter ends with its root. A missing root is normal; one that came back needs another.
        return self._observer.is_alive() and all(
            emitter.is_alive() or not os.path.isdir(emitter.watch.path)
            for emitter in self._observer.emitters
        )

    def sync(self, folders: Mapping[str, FolderKind]) -> set[str]:
        self._folders = folders
        for root in self._real.keys() - self._watched:
            try:
                self._observer.schedule(self, root, recursive=True, event_filter=_KINDS)
            except OSError:
                continue
            self._watched.add(root)
        watched = tuple(os.path.join(root, "") for root in self._watched)
        return {path for path in folders if not os.path.join(path, "").startswith(watched)}

    def stop(self) -> None:
        self._observer.stop()
        self._observer.join(_JOIN_TIMEOUT)

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        with self._marks.guard():
            for path in (event.src_path, event.dest_path):
                if path:
                    self._mark(self._as_given(os.fsdecode(path)), event.is_directory)

    def _mark(self, path: str, is_folder: bool) -> None:
        kind = self._folders.get(os.path.dirname(path))
        if path in self._folders:  # on Windows a deleted folder looks like a file
            self._marks.folder(path)
        if is_folder and kind is not None:
            self._marks.folder(os.path.dirname(path))
        elif kind is FolderKind.FILES:
            self._marks.file(path)

    def _as_given(self, path: str) -> str:
        """Spell a path as its root was given: macOS reports paths without symbolic links."""
        for root, real in self._real.items():
            if path == real or path.startswith(os.path.join(real, "")):
                return root + path[len(real) :]
        return path


_BACKENDS: Final[dict[str, Callable[[Sequence[str], _Marks], _Backend]]] = {
    "linux": _Inotify,
    "darwin": _Recursive,
    "win32": _Recursive,
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
        self._marks = _Marks(wake)
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
        except (OSError, RuntimeError, ImportError, UnsupportedLibcError) as error:
            if not self._warned:
                self._warned = True
                logger.warning(
                    "there are no file events, folders are polled",
                    extra={"fields": {"error": str(error)}},
                )
            return False
        return True
