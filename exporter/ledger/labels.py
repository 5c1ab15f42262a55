"""Label values: the one cleaning function, names made from records, and the caps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import sha256
from types import MappingProxyType
from typing import Final, NamedTuple

from .model import Project

MAX_LENGTH: Final = 128
UNKNOWN: Final = "unknown"
OTHER: Final = "other"
_OWNER_MARK: Final = "\x1f"
"""Between project and owner; a control character, so no cleaned label holds it."""
"""Takes the place of values beyond a label's cap."""

CAPS: Final = {"project": 1_000, "model": 100, "tool": 200}

_DROPPED: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class ProjectLabel(StrEnum):
    """What the label `project` shows."""

    SLUG = "slug"
    PATH = "path"
    NONE = "none"


def clean_label(text: str) -> str:
    """Return text that is safe as a label value: valid Unicode, one line, at most 128 characters.

    Lone surrogates become U+FFFD, control and line-separator characters are dropped, white space at
    the edges is trimmed; what is empty then is `unknown`.
    """
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return _DROPPED.sub("", text).strip()[:MAX_LENGTH].strip() or UNKNOWN


def model_label(name: str) -> str:
    """Return the recorded model name without a path prefix (`models/`, `publishers/google/...`)."""
    return clean_label(name.rstrip("/").rpartition("/")[2])


class LabelRules(NamedTuple):
    """How projects are labelled.

    `names` gives labels of one's own by path or short name. With `owner` a label also tells whose
    home the project is in (see `told`).
    """

    show: ProjectLabel = ProjectLabel.SLUG
    names: Mapping[str, str] = MappingProxyType({})
    owner: bool = False

    @property
    def fingerprint(self) -> str:
        """A text that is another one when labels may come out differently."""
        own = [f"{name}={label}" for name, label in sorted(self.names.items())]
        return "\n".join([self.show, *own, *["owner"] * self.owner])

    def own_name(self, project: Project) -> str:
        """Return the label that somebody chose for a project, empty if nobody did."""
        if self.show is ProjectLabel.NONE:
            return ""
        return self.names.get(project.path) or self.names.get(project.slug) or ""

    def label(self, project: Project) -> str:
        """Return the label of a project; empty when projects are not shown."""
        if self.show is ProjectLabel.NONE:
            return ""
        path = project.path if self.show is ProjectLabel.PATH else ""
        return self.own_name(project) or clean_label(path or project.slug)

    def told(self, label: str, owner: str) -> str:
        """Return a project's label as it is kept: with the owner, if owners are shown."""
        return f"{label}{_OWNER_MARK}{owner}" if self.owner else label


DEFAULT_RULES: Final = LabelRules()
"""Short names, and nothing else."""


def label_and_owner(label: str) -> tuple[str, str]:
    """Return the two parts of a project's label; the owner is empty if it is not told."""
    project, _, owner = label.partition(_OWNER_MARK)
    return project, owner


def distinct_label(label: str, path: str) -> str:
    """Return another label for the later of two paths that would share one: `<label>-<4 hex>`."""
    tail = "-" + sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:4]
    return label[: MAX_LENGTH - len(tail)] + tail
