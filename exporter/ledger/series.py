"""The birth of each series: its start timestamp, and whether scrapers have seen it as 0 yet.

A scraper cannot see the first value of a series as an increase. So a series that is born while
scrapers look on is held: they are shown 0 until it has been delivered to one of them for some time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Final, NamedTuple

from .totals import Naming, SeriesName

NEVER: Final = 1 << 62
"""A time, in milliseconds since the epoch, that nothing reaches."""

START_BEFORE_MS: Final = 1
"""A series starts, as 0, this many milliseconds before its first turn."""

SeriesKey = tuple[str, int, int, int]
"""Family of series that are born together, and the ids of project, model and tool (0: none).

Several keys may share the labels of one `SeriesName`.
"""


class Birth(NamedTuple):
    """A row of the ledger: when the first turn of a series was, and whether it is held."""

    key: SeriesKey
    born: int
    shown: bool


class Births:
    """What is known of all series; all keys of one name are shown or held alike.

    Times are milliseconds since the epoch.
    """

    def __init__(self, rows: Iterable[Birth], naming: Naming) -> None:
        self.starts: dict[SeriesName, int] = {}
        """Time of the first turn by name; once it may have been seen it stays."""
        self.held: dict[SeriesName, int] = {}
        """When the 0 was first delivered, by name of what is held; NEVER if it was not yet."""
        self._born: dict[SeriesKey, int] = {}
        self.absorb(rows, naming)

    def plan(
        self, touched: Mapping[SeriesKey, int], naming: Naming, live_from: int, complete: bool
    ) -> list[Birth]:
        """Return the rows to be stored for the earliest turn of each series of a transaction.

        A series is held if all its turns are at `live_from` or later. Before the first scan is
        complete nobody has seen anything, so a birth may still become earlier.
        """
        if not complete:
            return [
                Birth(key, time, True)
                for key, time in touched.items()
                if time < self._born.get(key, NEVER)
            ]
        earliest: dict[SeriesName, int] = {}
        for key, time in touched.items():
            name = name_of(key, naming)
            earliest[name] = min(time, earliest.get(name, NEVER))
        # History in what nobody has seen as 0 yet must not become an increase.
        unseen = {name for name, since in self.held.items() if since == NEVER}
        released = {name for name in unseen if earliest.get(name, NEVER) < live_from}
        births = self.releases(released, naming) if released else []
        for key, time in touched.items():
            if key in self._born:
                continue
            name = name_of(key, naming)
            if name in self.starts:
                # Another id under the same labels: their start stays, and so does what is shown.
                time = max(time, self.starts[name])
                births.append(Birth(key, time, name not in self.held or name in released))
            else:
                births.append(Birth(key, time, earliest[name] < live_from))
        return births

    def due(self, now: int, hold: int) -> set[SeriesName]:
        """Return what has been shown as 0 for `hold` milliseconds."""
        return {name for name, since in list(self.held.items()) if since + hold <= now}

    def next_due(self, hold: int) -> int | None:
        """Return when the next of them will have been, None if none has been shown as 0."""
        first = min(list(self.held.values()), default=NEVER)
        return None if first == NEVER else first + hold

    def releases(self, names: Container[SeriesName], naming: Naming) -> list[Birth]:
        """Return the rows to be stored when these series are not held any more."""
        return [
            Birth(key, born, True)
            for key, born in self._born.items()
            if name_of(key, naming) in names
        ]

    def absorb(self, rows: Iterable[Birth], naming: Naming) -> None:
        """Take over what has been stored."""
        for key, time, shown in rows:
            self._born[key] = time
            name = name_of(key, naming)
            self.starts[name] = min(time, self.starts.get(name, NEVER))
            if shown:
                self.held.pop(name, None)
            else:
                self.held.setdefault(name, NEVER)


def name_of(key: SeriesKey, naming: Naming) -> SeriesName:
    """Return the labels of a series; empty where it has none."""
    family, project, model, tool = key
    return (
        family,
        naming.project.get(project, ""),
        naming.model.get(model, ""),
        naming.tool.get(tool, ""),
    )
