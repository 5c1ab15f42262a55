"""How texts are written in both exposition formats: labels, and the help of OpenMetrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def escaped(text: str) -> str:
    """Return a text with backslashes, quotes and line ends escaped."""
    return text.translate(_ESCAPES)


def label_part(labels: Mapping[str, str]) -> str:
    """Return the labels of a series without their braces; one without a value is left out."""
    return ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items() if text)


def in_braces(part: str) -> str:
    """Return the labels of a series as they stand behind its name; nothing if there are none."""
    return f"{{{part}}}" if part else ""
