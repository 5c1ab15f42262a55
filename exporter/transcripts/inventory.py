"""Which transcripts there are, and which of them have changed since they were read."""

from __future__ import annotations

import errno
import os
import stat
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, NamedTuple

from ..ledger.model import FileCursor
from ..ledger.stats import Stats
from . import layout
from .changes import FolderKind
from .conversation import Place
from .cursors import Cursors
from .files import error_reason, identity, modified
from .projects import Projects
from .reader import LOOK_AGAIN, Key, Source, project_hash_of

LIVE_SECONDS: Final = 600
"""A transcript that changed within this time is looked at every second, events or not."""

WATCHED_MAX: Final = 5_000
"""Folders that are watched for events; where there are more, all are looked at regularly."""

LIVE_MAX: Final = 2_000
"""Transcripts that are looked at every second, the last ones that were read."""

_BACKOFF: Final = (1.0, 300.0)


class _Delay(NamedTuple):
    until: float
    seconds: float


class Inventory:
    """Knows the folders and cursors of all roots; one thread uses it. Times are seconds."""

    def __init__(
        self, roots: Sequence[str], cursors: Iterable[FileCursor], scanned: set[str], stats: Stats
    ) -> None:
        """`roots` are folders, or patterns that folders match sooner or later."""
        self._patterns = tuple(roots)
        self.roots = layout.matching(self._patterns)
        self._unmatched: set[str] = set()
        self.gone: list[Key] = []
        """Cursors of files that are not there any more, to be dropped from the ledger."""
        self.crowded = False
        """Whether there are more folders than are watched, as `kinds` found last."""
        self._stats = stats
        self._scanned = set(scanned)
        self._projects = {root: self._projects_of(root) for root in self.roots}
        self._trees: list[layout.Tree] = []
        self._refused: dict[Key, tuple[int, int]] = {}
        self._delays: dict[Key, _Delay] = {}
        self._live: OrderedDict[Key, None] = OrderedDict()
        self._unsure: set[str] = set()
        self._noted: set[str] = set()
        self._cursors = Cursors(self.roots, self._learning(cursors))

    def kinds(self, polled: Container[str]) -> dict[str, FolderKind]:
        """Return the folders to be watched below all roots but these, which are not too many."""
        trees = [tree for tree in self._trees if tree.root not in polled]
        parents = ((path, FolderKind.PARENT) for tree in trees for path in tree.parents)
        files = ((folder.path, FolderKind.FILES) for tree in trees for folder in tree.chats)
        every = chain(parents, files)
        kinds = dict(islice(every, WATCHED_MAX))
        self.crowded = next(every, None) is not None
        return kinds

    def _projects_of(self, root: str) -> Projects:
        return Projects(root, self._note_once, layout.owner_of(root))

    def present_roots(self) -> list[str]:
        """Return the roots that exist."""
        return [root for root in self.roots if os.path.isdir(root)]

    def missing_roots(self) -> set[str]:
        """Return the roots that do not exist, and the patterns that nothing matches."""
        return {root for root in self.roots if not os.path.isdir(root)} | self._unmatched

    def is_first_scan(self, root: str) -> bool:
        """Tell whether this root has never been read completely."""
        return root not in self._scanned

    def mark_scanned(self, roots: Iterable[str]) -> None:
        """Note that all of these roots' transcripts have been read."""
        self._scanned.update(roots)

    def find_folders(self) -> None:
        """Look for the folders of all roots; this comes before any listing of files."""
        self._trees.clear()
        self._unsure.clear()
        matches = {pattern: layout.matching([pattern]) for pattern in self._patterns}
        self._unmatched = {pattern for pattern, found in matches.items() if not found}
        for root in chain.from_iterable(matches.values()):
            if root not in self._projects:
                self.roots += (root,)
                self._projects[root] = self._projects_of(root)
                self._cursors.add_root(root)
        for root in self.roots:
            self._projects[root].refresh()
            self._trees.append(layout.tree(root, self._noting(root)))

    def changed(self, now: float) -> list[Source]:
        """List every folder and return the transcripts that have something new."""
        sources: list[Source] = []
        listed: dict[str, set[str]] = {root: set() for root in self.roots}
        for tree in self._trees:
            root, note = tree.root, self._noting(tree.root)
            for folder in tree.chats:
                prefix = folder.path[len(root) + 1 :] + os.sep
                for name, status in layout.transcripts(folder, note):
                    path = prefix + name
                    listed[root].add(path)
                    sources += self._if_changed((root, path), status, now)
        self._stats.files = {root: len(paths) for root, paths in listed.items()}
        # A root with a folder that could not be listed is no proof that anything is gone.
        top = {root for root in self.roots if os.path.isdir(os.path.join(root, "tmp"))}
        top -= self._unsure
        gone = [key for key in self._cursors if key[0] in top and key[1] not in listed[key[0]]]
        # What was written last may still be readable through a descriptor that is open.
        sources += [self._source(key, 0) for key in gone if key in self._live]
        for key in gone:
            self.drop(key)
        for waiting in (self._delays, self._refused):
            for root, path in [key for key in waiting if key[1] not in listed[key[0]]]:
                del waiting[root, path]
        return sources

    def changed_among(self, paths: Iterable[str], now: float) -> list[Source]:
        """Return those of the named files that are transcripts with something new."""
        sources: list[Source] = []
        for path in sorted(paths):
            folder_path, name = os.path.split(path)
            for tree in self._trees:
                folder = tree.folder(folder_path)
                if folder is None or not layout.is_transcript(name, folder.parent):
                    continue
                key = (tree.root, path[len(tree.root) + 1 :])
                try:
                    sources += self._if_changed(key, os.lstat(path), now)
                except OSError:
                    if key in self._live:
                        sources.append(self._source(key, 0))
                break
        return sources

    def live(self, now: float) -> Collection[Key]:
        """Return the transcripts that changed lately, or must be looked at once more."""
        for key in [key for key in self._live if not self._is_live(key, now)]:
            del self._live[key]
        return self._live.keys()

    def drop(self, key: Key) -> None:
        """Forget a transcript that is gone."""
        self.gone.append(key)
        self._cursors.pop(key)
        self._live.pop(key, None)

    def settle(self, cursor: FileCursor) -> None:
        """Take over the cursor of a file once the ledger has it."""
        key = (cursor.root, cursor.path)
        self._cursors.put(cursor)
        self._live[key] = None
        self._live.move_to_end(key)
        if len(self._live) > LIVE_MAX:
            self._live.popitem(last=False)
        self._delays.pop(key, None)

    def refuse(self, key: Key, error: OSError, now: float) -> None:
        """Count a file that could not be read, and leave it alone for a while."""
        if isinstance(error, FileNotFoundError):
            return
        self._note(error)
        last = self._delays.get(key, _Delay(0, _BACKOFF[0] / 2))
        seconds = min(2 * last.seconds, _BACKOFF[1])
        self._delays[key] = _Delay(now + seconds, seconds)

    def _is_live(self, key: Key, now: float) -> bool:
        cursor = self._cursors.get(key)
        if cursor is None:
            return False
        return cursor.mtime == LOOK_AGAIN or now - cursor.mtime / 1e9 < LIVE_SECONDS

    def _if_changed(self, key: Key, status: os.stat_result, now: float) -> Iterator[Source]:
        cursor = self._cursors.get(key)
        if cursor is not None and (
            cursor.mtime == modified(status)
            and cursor.size == status.st_size
            and (cursor.device, cursor.inode) == identity(status)
        ):
            return
        if not stat.S_ISREG(status.st_mode) and key in self._live:
            del self._live[key]
            yield self._source(key, 0)  # what was written before is read through the open file
            return
        if not stat.S_ISREG(status.st_mode):
            mark = (status.st_ino, status.st_mtime_ns)
            if self._refused.get(key) != mark:
                self._refused[key] = mark
                reason = "link" if stat.S_ISLNK(status.st_mode) else "not_regular"
                self._stats.file_errors[reason] += 1
            return
        if key in self._delays and now < self._delays[key].until:
            return
        yield self._source(key, status.st_size)

    def place(self, key: Key) -> Place:
        """Return what the path of a transcript tells, with what is known of its project by now."""
        root, path = key
        _, folder, _, *parent, name = path.split(os.sep)
        project = self._projects[root].project(folder)
        return Place(project, name.partition(".json")[0][-8:], parent[0] if parent else "")

    def learn(self, key: Key, project_hash: str) -> None:
        """Note the `projectHash` that a transcript carries: it may name a hash folder."""
        root, path = key
        if project_hash:
            self._projects[root].learn(path.split(os.sep)[1], project_hash)

    def _source(self, key: Key, size: int) -> Source:
        return Source(*key, size, self._cursors.get(key))

    def _learning(self, cursors: Iterable[FileCursor]) -> Iterator[FileCursor]:
        """Pass cursors on, and learn from those of our roots what they tell of projects."""
        for cursor in cursors:
            if cursor.root in self._projects:
                self.learn((cursor.root, cursor.path), project_hash_of(cursor))
            yield cursor

    def _noting(self, root: str) -> layout.OnError:
        def note(error: OSError) -> None:
            if error.errno == errno.ELOOP:
                self._note_once(error)
                return
            if not isinstance(error, FileNotFoundError):
                self._unsure.add(root)
            self._note(error)

        return note

    def _note_once(self, error: OSError) -> None:
        """Count what is wrong with a path once, not at every look."""
        if error.filename not in self._noted and not isinstance(error, FileNotFoundError):
            self._noted.add(error.filename)
            self._note(error)

    def _note(self, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self._stats.file_errors[error_reason(error)] += 1
