"""File events on Linux: one inotify instance with one thread and a watch per folder.

Watching folder by folder keeps the tools' output folders, which may be many and busy, out of it.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from watchdog.observers.inotify_c import InotifyConstants as In
from watchdog.observers.inotify_c import InotifyFD, Mask

from .changes import FolderKind, Marks

if TYPE_CHECKING:
    from watchdog.observers.inotify_c import CallbackId, InotifyEvent, WatchDescriptor

logger = logging.getLogger(__name__)

_JOIN_TIMEOUT: Final = 2.0
"""Seconds that the thread gets to end; it is a daemon and may be left behind."""

_ITSELF: Final = In.IN_DELETE_SELF | In.IN_MOVE_SELF
_LOST: Final = _ITSELF | In.IN_UNMOUNT
# Two names of one folder share its watch: the second must not take from the mask.
_ALWAYS: Final = In.IN_ONLYDIR | In.IN_MASK_ADD | In.IN_CREATE | In.IN_DELETE | In.IN_MOVE | _ITSELF
_MASKS: Final = {
    FolderKind.PARENT: Mask(_ALWAYS),
    FolderKind.FILES: Mask(_ALWAYS | In.IN_MODIFY | In.IN_EXCL_UNLINK),
}
"""Opening, reading and closing are not in them: our own reading must not make events."""


class Inotify:
    """Watchdog's inotify thread with a watch per folder, so that no other folder makes events."""

    def __init__(self, marks: Marks) -> None:
        """Start the thread; raises OSError where the machine has no inotify instance left."""
        self._marks = marks
        self._watched: dict[str, _WatchedFolder] = {}
        self._warned = False
        self._inotify = InotifyFD()
        self._inotify.name = "watcher"
        self._inotify.start()

    @property
    def alive(self) -> bool:
        """Whether events still come."""
        return self._inotify.is_alive()

    def sync(self, folders: Mapping[str, FolderKind]) -> set[str]:
        """Watch these folders and no others; return those of them that cannot be watched."""
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
        """End the thread and release all watches."""
        for folder in self._watched.values():
            folder.lost = True  # closing reports each watch as deleted
        self._inotify.stop()
        self._inotify.join(_JOIN_TIMEOUT)

    def _add(self, path: str, kind: FolderKind) -> bool:
        folder = _WatchedFolder(path, kind, self._marks)
        try:
            folder.watch = self._inotify.add_callback(
                os.fsencode(path), _MASKS[kind], folder, folder.id
            )
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

    def __init__(self, path: str, kind: FolderKind, marks: Marks) -> None:
        self.path = path
        self.kind = kind
        self.lost = False
        """Deleted, moved or unmounted: whatever has this path now needs a new watch."""
        self.id = cast("CallbackId", id(self))
        self.watch: WatchDescriptor
        self._marks = marks

    def on_event(self, event: InotifyEvent) -> None:
        with self._marks.guard():
            if event.mask & _LOST:
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
