"""Where Gemini CLI keeps transcripts below a root, and which files there are transcripts."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_NAME: Final = re.compile(r".+\.(?:json|jsonl|jsonl\.unreadable-[0-9]+)", re.DOTALL)
_HASH: Final = re.compile("[0-9a-f]{64}")
_NEVER_LISTED: Final = "tool-outputs"

OnError = Callable[[OSError], None]
"""Called with what went wrong with one folder or file; the others are listed all the same."""


class Folder(NamedTuple):
    """A folder that holds transcripts: `chats` of a project, or one subagent folder in it."""

    path: str
    project: str
    """Name of the project folder below `tmp`: a slug, or a SHA-256 up to Gemini CLI 0.28."""
    parent: str
    """Id of the session that started the subagents of this folder; empty for `chats` itself."""


class Tree(NamedTuple):
    """The folders of one root: those that hold transcripts, and those where such may appear."""

    chats: list[Folder]
    parents: list[str]


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
    top = os.path.join(root, "tmp")
    found = Tree([], [root, top])
    for project in sorted(_subfolders(top, on_error), key=lambda name: (is_hash(name), name)):
        folder = os.path.join(top, project)
        chats = os.path.join(folder, "chats")
        found.parents.append(folder)
        if not _is_folder(chats, on_error):
            continue
        found.chats.append(Folder(chats, project, ""))
        for parent in sorted(_subfolders(chats, on_error)):
            if parent != _NEVER_LISTED:
                found.chats.append(Folder(os.path.join(chats, parent), project, parent))
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
