"""Where Gemini CLI keeps transcripts below a root, and which files there are transcripts."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

_NAME: Final = re.compile(r".+\.(?:json|jsonl|jsonl\.unreadable-[0-9]+)", re.DOTALL)
_HASH: Final = re.compile("[0-9a-f]{64}")
_CHATS: Final = "chats"
_NEVER_LISTED: Final = "tool-outputs"

OnError = Callable[[OSError], None]
"""Called with what went wrong with one folder or file; the others are listed all the same."""


def matching(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the folders that are meant: a pattern's matches, and any other name as it is."""
    found: list[str] = []
    for pattern in patterns:
        if glob.has_magic(pattern) and not os.path.lexists(pattern):
            found += sorted(filter(os.path.isdir, glob.glob(pattern, include_hidden=True)))
        else:
            found.append(pattern)
    return tuple(dict.fromkeys(found))


def owner_of(root: str) -> str:
    """Return whose home a root is in, by its path: the folder that holds `.gemini`."""
    parts = [part for part in root.split(os.sep) if part not in ("", ".cache", ".gemini")]
    return parts[-1] if parts else ""


class Folder(NamedTuple):
    """A folder that holds transcripts: `chats` of a project, or one subagent folder in it."""

    path: str
    project: str
    """Name of the project folder below `tmp`: a slug, or a SHA-256 up to Gemini CLI 0.28."""
    parent: str
    """Id of the session that started the subagents of this folder; empty for `chats` itself."""


class Tree:
    """The folders of one root: those that hold transcripts, and those where such may appear.

    Only names are kept, and paths are made of them when asked for: there may be very many.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._top = os.path.join(root, "tmp")
        self._parents: dict[str, tuple[str, ...] | None] = {}

    def add(self, project: str, parents: Iterable[str] | None) -> None:
        """Add a project folder with the subagent folders in its `chats`; None without `chats`."""
        self._parents[project] = None if parents is None else tuple(parents)

    @property
    def chats(self) -> Iterator[Folder]:
        """The folders that hold transcripts."""
        for project, parents in self._parents.items():
            if parents is not None:
                chats = os.path.join(self._top, project, _CHATS)
                yield Folder(chats, project, "")
                for parent in parents:
                    yield Folder(os.path.join(chats, parent), project, parent)

    @property
    def parents(self) -> Iterator[str]:
        """The folders in which others may appear."""
        yield self.root
        yield self._top
        for project in self._parents:
            yield os.path.join(self._top, project)

    def folder(self, path: str) -> Folder | None:
        """Return what is known of a folder with that path if it is one that holds transcripts."""
        top = os.path.join(self._top, "")
        if not path.startswith(top):
            return None
        project, *below = path[len(top) :].split(os.sep)
        parents = self._parents.get(project)
        if parents is None or below[:1] != [_CHATS] or len(below) > 2:
            return None
        parent = below[1] if len(below) == 2 else ""
        return Folder(path, project, parent) if not parent or parent in parents else None


def is_hash(folder: str) -> bool:
    """Tell whether a project folder is named by the SHA-256 of its path (Gemini CLI up to 0.28)."""
    return _HASH.fullmatch(folder) is not None


def is_transcript(name: str, parent: str) -> bool:
    """Tell whether a file of that name, in a subagent folder or not, is a transcript."""
    if not parent and not name.startswith("session-"):
        return False
    return _NAME.fullmatch(name) is not None


def is_document(name: str) -> bool:
    """Tell whether a transcript is one JSON document that is rewritten at each change."""
    return name.endswith(".json")


def tree(root: str, on_error: OnError) -> Tree:
    """Return the folders below a root, slug folders before hash folders.

    Only `tmp`, project folders and `chats` are listed; links are not followed below `tmp`. A root
    that does not exist (yet) is a parent like any other.
    """
    found = Tree(root)
    top = os.path.join(root, "tmp")
    for project in sorted(_subfolders(top, on_error), key=lambda name: (is_hash(name), name)):
        chats = os.path.join(top, project, _CHATS)
        parents = None
        if _is_folder(chats, on_error):
            parents = sorted(set(_subfolders(chats, on_error)) - {_NEVER_LISTED})
        found.add(project, parents)
    return found


def transcripts(folder: Folder, on_error: OnError) -> Iterator[tuple[str, os.stat_result]]:
    """Yield name and status of each transcript of one folder, links not followed."""
    try:
        with os.scandir(folder.path) as entries:
            for entry in entries:
                if not is_transcript(entry.name, folder.parent):
                    continue
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        yield entry.name, entry.stat(follow_symlinks=False)
                except OSError as error:
                    on_error(error)
    except OSError as error:
        on_error(error)


def _subfolders(path: str, on_error: OnError) -> list[str]:
    try:
        with os.scandir(path) as entries:
            folders = []
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif entry.is_symlink() and os.path.isdir(entry.path):
                    on_error(_link(entry.path))
            return folders
    except OSError as error:
        on_error(error)
        return []


def _link(path: str) -> OSError:
    return OSError(errno.ELOOP, "a link in the place of a folder", path)


def _is_folder(path: str, on_error: OnError) -> bool:
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            on_error(_link(path))
        return stat.S_ISDIR(mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        on_error(error)
        return False
