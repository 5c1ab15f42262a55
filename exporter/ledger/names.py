"""Texts as small integers: projects, models, tools, sessions, rates and roots of one ledger."""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from typing import Final

from .labels import CAPS, OTHER, LabelRules, clean_label, distinct_label, model_label
from .model import Project, Rate
from .totals import Naming

_PROJECTS_MAX: Final = 5_000
"""Projects that a ledger tells apart, whatever their label: all others are one."""

_OTHERS: Final = Project(OTHER)
_SESSIONS_MAX: Final = 20_000
_SHORT_ID: Final = 8
_NAMES_MAX: Final = 20_000


class Names:
    """Interns texts in the ledger's tables, inside the caller's transaction.

    Labels are decided when a name is first seen, caps included, and stay. After a rollback `reload`
    must be called, since ids that were given out may not exist any more.
    """

    def __init__(self, db: sqlite3.Connection, rules: LabelRules) -> None:
        self._db = db
        self._rules = rules
        self.overflow: dict[str, int] = dict.fromkeys(CAPS, 0)
        self._overflowed: OrderedDict[int, None] = OrderedDict()
        self.reload()

    def reload(self) -> None:
        """Read all names again from the ledger."""
        db = self._db
        self._naming: Naming | None = None
        self._projects: dict[Project, int] = {}
        self._project_labels: dict[int, str] = {}
        self._paths_by_label: dict[str, set[str]] = {}
        for key, label, *names in db.execute("SELECT id, label, slug, path, owner FROM project"):
            project = Project(*names)
            self._projects[project] = key
            self._own(label, key, project)
        self._models = {label: key for key, label in db.execute("SELECT id, label FROM model")}
        self._tools = {label: key for key, label in db.execute("SELECT id, label FROM tool")}
        self._rates = {
            Rate(*row): key
            for key, *row in db.execute("SELECT id, model, input, cached, output, source FROM rate")
        }
        self._known: dict[tuple[str, str], int] = {}
        self._sessions: dict[str, int] = {}

    def relabel(self) -> None:
        """Give every project the label that the rules say now."""
        self._project_labels.clear()
        self._paths_by_label.clear()
        for project, key in sorted(self._projects.items(), key=lambda item: item[1]):
            label = self._new_project_label(project)
            self._own(label, key, project)
            self._db.execute("UPDATE project SET label = ? WHERE id = ?", (label, key))

    def naming(self) -> Naming:
        """Return the labels and rates by id; the same object until a name is added."""
        if self._naming is None:
            self._naming = self._freeze()
        return self._naming

    def _freeze(self) -> Naming:
        return Naming(
            dict(self._project_labels),
            {key: label for label, key in self._models.items()},
            {key: label for label, key in self._tools.items()},
            {key: rate for rate, key in self._rates.items()},
        )

    def project(self, project: Project) -> int:
        """Return the id of a project; two paths never share a label unless a cap makes them."""
        key = self._projects.get(project)
        if key is None:
            owner = clean_label(project.owner) if project.owner else ""
            clean = Project(clean_label(project.slug), _storable(project.path), owner)
            key = self._projects.get(clean)
            if key is None and len(self._projects) >= _PROJECTS_MAX:
                self._count_overflow("project", clean)
                clean = _OTHERS
                key = self._projects.get(clean)
            if key is None:
                label = self._new_project_label(clean)
                names = (clean.slug, clean.path, clean.owner, label)
                key = self._insert("project", "slug, path, owner, label", names)
                self._projects[clean] = key
                self._own(label, key, clean)
        return key

    def model(self, name: str) -> int:
        """Return the id of a model's label."""
        return self._label("model", self._models, name)

    def model_label(self, key: int) -> str:
        """Return the label of a model's id."""
        return self.naming().model[key]

    def tool(self, name: str) -> int:
        """Return the id of a tool's label."""
        return self._label("tool", self._tools, name)

    def rate(self, rate: Rate | None) -> int:
        """Return the id of a rate; 0 is unpriced."""
        if rate is None:
            return 0
        key = self._rates.get(rate)
        if key is None:
            self._naming = None
            values = (rate.model, rate.input, rate.cached, rate.output, rate.source)
            key = self._rates[rate] = self._insert(
                "rate", "model, input, cached, output, source", values
            )
        return key

    def session(self, name: str, project: int, main: bool, time: int) -> tuple[int, bool]:
        """Return the id of a session, and whether this is the first main turn of it."""
        key = self._sessions.get(name)
        text = _storable(name)
        if key is None:
            row = self._find_session(text, project)
            if row is None:
                values = (text, project, int(main), time)
                key = self._insert("session", "name, project, main, last_turn", values)
                return key, main
            key, known_main = row
            if main and not known_main:
                self._db.execute(
                    "UPDATE session SET main = 1, project = ? WHERE id = ?", (project, key)
                )
                return key, True
            if known_main:
                if len(self._sessions) >= _SESSIONS_MAX:
                    self._sessions.clear()
                self._sessions[name] = key
        return key, False

    def _find_session(self, name: str, project: int) -> tuple[int, int] | None:
        """Return id and main flag of a session; the start of its id is enough.

        A transcript without a header only has the first eight characters, in its file name.
        """
        select = "SELECT id, main FROM session WHERE"
        found = self._db.execute(f"{select} name = ?", (name,)).fetchone()
        if found is None and len(name) <= _SHORT_ID:
            where = "project = ? AND substr(name, 1, ?) = ? LIMIT 1"
            found = self._db.execute(f"{select} {where}", (project, len(name), name)).fetchone()
        return None if found is None else (found[0], found[1])

    def root(self, path: str) -> int:
        """Return the id of a root folder."""
        raw = os.fsencode(path)
        row = self._db.execute("SELECT id FROM root WHERE path = ?", (raw,)).fetchone()
        return row[0] if row else self._insert("root", "path", (raw,))

    def _label(self, kind: str, known: dict[str, int], name: str) -> int:
        key = self._known.get((kind, name))
        if key is None:
            label = model_label(name) if kind == "model" else clean_label(name)
            if label not in known and len(known) >= CAPS[kind]:
                self._count_overflow(kind, label)
                label = OTHER
            if label not in known:
                self._naming = None
                known[label] = self._insert(kind, "label", (label,))
            key = known[label]
            if len(self._known) < _NAMES_MAX:
                self._known[kind, name] = key
        return key

    def _count_overflow(self, kind: str, name: Project | str) -> None:
        mark = hash((kind, name))
        if mark not in self._overflowed:
            self.overflow[kind] += 1
            self._overflowed[mark] = None
            if len(self._overflowed) > _NAMES_MAX:
                self._overflowed.popitem(last=False)

    def _own(self, label: str, key: int, project: Project) -> None:
        self._naming = None
        self._project_labels[key] = label
        # Under a name that somebody chose, projects are meant to be counted together.
        path = "" if self._rules.own_name(project) else project.path
        self._paths_by_label.setdefault(label, set()).add(path)

    def _new_project_label(self, project: Project) -> str:
        rules = self._rules
        short = rules.label(project)
        label = rules.told(short, project.owner)
        if short and project.path and not rules.own_name(project):
            paths = self._paths_by_label.get(label, set()) - {""}
            if paths and project.path not in paths:
                label = rules.told(distinct_label(short, project.path), project.owner)
        if label not in self._paths_by_label and len(self._paths_by_label) >= CAPS["project"]:
            self._count_overflow("project", project)
            label = OTHER
        return label

    def _insert(self, table: str, columns: str, values: tuple[object, ...]) -> int:
        marks = ", ".join("?" * len(values))
        sql = f"INSERT INTO {table} ({columns}) VALUES ({marks})"
        row_id = self._db.execute(sql, values).lastrowid
        assert row_id is not None
        return row_id


def _storable(text: str) -> str:
    """Return text that SQLite takes: without lone surrogates and NUL."""
    return text.encode("utf-8", "replace").decode().replace("\0", "")
