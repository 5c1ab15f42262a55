"""Project folder -> project: the rules by which a hash or a slug folder gets its name."""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Final

import msgspec

from ..ledger.model import Project
from .files import read_small
from .layout import OnError, is_hash

_PATH_LIMIT: Final = 4_096
_REGISTRY_LIMIT: Final = 2_000_000
_PROJECTS_MAX: Final = 5_000
"""Projects of one root whose paths are remembered; what a hash belongs to, too."""


class _Registry(msgspec.Struct):
    projects: dict[str, str] = {}


class Projects:
    """Names the project folders of one root.

    A path is known from `.project_root` beside `chats`, else from `projects.json`. A hash folder
    belongs to the slug of the path with that SHA-256, or to the slug folder whose transcripts carry
    that `projectHash` (on Windows only this finds it: stored paths are lower-cased there).
    """

    def __init__(self, root: str, on_error: OnError, owner: str = "") -> None:
        """`on_error` is told of each failed try to read what names projects; it may be missing."""
        self._root = root
        self._owner = owner
        self._on_error = on_error
        self._known: dict[str, Project] = {}
        self._by_hash: dict[str, Project] = {}
        self._paths: dict[str, str] = {}
        self._registry_stamp: tuple[int, int] | None = None

    def refresh(self) -> None:
        """Read `projects.json` again if it has changed; it may be missing or half written."""
        path = os.path.join(self._root, "projects.json")
        try:
            status = os.stat(path)
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp == self._registry_stamp:
                return
            registry = msgspec.json.decode(read_small(path, _REGISTRY_LIMIT), type=_Registry)
        except OSError as error:
            self._on_error(error)
            return
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        self._registry_stamp = stamp
        for place, slug in registry.projects.items():
            self._paths[slug] = place
            self._learn_path(Project(slug, place, self._owner))

    def project(self, folder: str) -> Project:
        """Return the project of a folder below `tmp`."""
        project = self._known.get(folder)
        if project is None:
            project = self._by_hash.get(folder) if is_hash(folder) else self._named(folder)
            if project is None:
                return Project(f"unknown-{folder[:8]}", "", self._owner)
            # A slug without a path is asked for again: its path may be written later.
            if (project.path or is_hash(folder)) and len(self._known) < _PROJECTS_MAX:
                self._known[folder] = project
        return project

    def learn(self, folder: str, project_hash: str) -> None:
        """Note the `projectHash` that a transcript in a slug folder carries."""
        if not is_hash(folder) and is_hash(project_hash) and project_hash not in self._by_hash:
            self._learn_hash(project_hash, self.project(folder))

    def _named(self, slug: str) -> Project:
        path = self._paths.get(slug, "")
        marker = os.path.join(self._root, "tmp", slug, ".project_root")
        try:
            path = os.fsdecode(read_small(marker, _PATH_LIMIT)).strip() or path
        except OSError as error:
            self._on_error(error)
        project = Project(slug, path, self._owner)
        if path:
            self._learn_path(project)
        return project

    def _learn_path(self, project: Project) -> None:
        digest = sha256(project.path.encode("utf-8", "surrogateescape")).hexdigest()
        self._learn_hash(digest, project)

    def _learn_hash(self, digest: str, project: Project) -> None:
        if len(self._by_hash) < _PROJECTS_MAX:
            self._by_hash.setdefault(digest, project)
