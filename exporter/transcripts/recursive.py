"""File events on macOS and Windows, whose kernels watch whole subtrees: one watch per root."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from watchdog import events
from watchdog.observers import Observer

from .changes import FolderKind, Marks

_JOIN_TIMEOUT: Final = 2.0
"""Seconds that the observer gets to end; its threads are daemons and may be left behind."""

_KINDS: Final[list[type[events.FileSystemEvent]]] = [
    *(events.FileCreatedEvent, events.FileModifiedEvent),
    *(events.FileMovedEvent, events.FileDeletedEvent),
    *(events.DirCreatedEvent, events.DirMovedEvent, events.DirDeletedEvent),
]
"""Opening, reading and closing a file are none of them: our own reading must not make events."""


class Recursive(events.FileSystemEventHandler):
    """Watchdog's observer with one recursive watch per root, whose events are filtered here."""

    def __init__(self, roots: Sequence[str], marks: Marks) -> None:
        """Start the observer; raises OSError or RuntimeError where it cannot start."""
        self._marks = marks
        self._folders: Mapping[str, FolderKind] = {}
        self._real = {root: os.path.realpath(root) for root in roots}
        self._watched: set[str] = set()
        self._observer = Observer()
        self._observer.start()

    @property
    def alive(self) -> bool:
        """Whether events still come."""
        # An emitter ends with its root. A missing root is normal; one that came back needs another.
        return self._observer.is_alive() and all(
            emitter.is_alive() or not os.path.isdir(emitter.watch.path)
            for emitter in self._observer.emitters
        )

    def sync(self, folders: Mapping[str, FolderKind]) -> set[str]:
        """Heed these folders and no others; return those of them that cannot be watched."""
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
        """End the observer's threads."""
        self._observer.stop()
        self._observer.join(_JOIN_TIMEOUT)

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        """Mark what the event is about; called in a thread of the observer."""
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
