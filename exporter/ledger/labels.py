"""Label values: the one cleaning function, names made from records, and the caps."""

from __future__ import annotations

import re
from enum import StrEnum
from hashlib import sha256
from typing import Final

from .model import Project

MAX_LENGTH: Final = 128
UNKNOWN: Final = "unknown"
OTHER: Final = "other"
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


def project_label(project: Project, show: ProjectLabel) -> str:
    """Return the label of a project; empty when projects are not shown."""
    if show is ProjectLabel.NONE:
        return ""
    return clean_label(project.path if show is ProjectLabel.PATH and project.path else project.slug)


def distinct_label(label: str, path: str) -> str:
    """Return another label for the later of two paths that would share one: `<label>-<4 hex>`."""
    tail = "-" + sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:4]
    return label[: MAX_LENGTH - len(tail)] + tail
