"""The birth of each series: its start timestamp, and who has seen it as 0 yet.

Nobody can see the first value of a series as an increase. So a series that is born while an
audience looks on is held: that audience is shown 0 until it has been delivered for some time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Final, NamedTuple

from .audience import EVERYBODY, NEVER, Audience, together
from .totals import Naming, SeriesName

START_BEFORE_MS: Final = 1
"""A series starts, as 0, this many milliseconds before its first turn."""

SeriesKey = tuple[str, int, int, int]
"""Family of series that are born together, and the ids of project, model and tool (0: none).

Several keys may share the labels of one `SeriesName`.
"""


class Birth(NamedTuple):
    """A row of the ledger: when the first turn of a series was, and who is shown its value."""

    key: SeriesKey
    born: int
    shown: Audience


class Births:
    """What is known of all series; all keys of one name are shown or held alike.

    Times are milliseconds since the epoch.
    """

    def __init__(self, rows: Iterable[Birth], naming: Naming) -> None:
        self.starts: dict[SeriesName, int] = {}
        """Time of the first turn by name; once it may have been seen it stays."""
        self.held: dict[Audience, dict[SeriesName, int]] = {audience: {} for audience in Audience}
        """When the 0 was first delivered, by name of what is held; NEVER if it was not yet."""
        self._born: dict[SeriesKey, int] = {}
        self.absorb(rows, naming)

    def plan(
        self,
        touched: Mapping[SeriesKey, int],
        naming: Naming,
        live_from: Mapping[Audience, int],
        complete: bool,
    ) -> list[Birth]:
        """Return the rows to be stored for the earliest turn of each series of a transaction.

        A series is held from an audience if all its turns are at its `live_from` or later. Before
        the first scan is complete nobody has seen anything, so a birth may still become earlier.
        """
        if not complete:
            return [
                Birth(key, time, EVERYBODY)
                for key, time in touched.items()
                if time < self._born.get(key, NEVER)
            ]
        earliest: dict[SeriesName, int] = {}
        for key, time in touched.items():
            name = name_of(key, naming)
            earliest[name] = min(time, earliest.get(name, NEVER))
        # History in what nobody has seen as 0 yet must not become an increase.
        released = {
            audience: {
                name
                for name, since in held.items()
                if since == NEVER and earliest.get(name, NEVER) < live_from[audience]
            }
            for audience, held in self.held.items()
        }
        births = self.releases(released, naming)
        for key, time in touched.items():
            if key in self._born:
                continue
            name = name_of(key, naming)
            if name in self.starts:
                # Another id under the same labels: their start stays, and so does what is shown.
                time = max(time, self.starts[name])
                births.append(Birth(key, time, self._shown(name, released)))
            else:
                shown = together(at for at in Audience if earliest[name] < live_from[at])
                births.append(Birth(key, time, shown))
        return births

    def due(self, now: int, holds: Mapping[Audience, int]) -> dict[Audience, set[SeriesName]]:
        """Return what each audience has been shown as 0 for its hold, in milliseconds."""
        return {
            audience: {name for name, since in list(held.items()) if since + holds[audience] <= now}
            for audience, held in self.held.items()
        }

    def next_due(self, holds: Mapping[Audience, int]) -> int | None:
        """Return when the next of them will have been, None if none has been shown as 0."""
        firsts = [
            since + holds[audience]
            for audience, held in self.held.items()
            for since in list(held.values())
            if since != NEVER
        ]
        return min(firsts, default=None)

    def releases(self, names: Mapping[Audience, Set[SeriesName]], naming: Naming) -> list[Birth]:
        """Return the rows to be stored when these series are not held any more."""
        released = set().union(*names.values())
        if not released:
            return []
        return [
            Birth(key, born, self._shown(name, names))
            for key, born in self._born.items()
            if (name := name_of(key, naming)) in released
        ]

    def _shown(self, name: SeriesName, released: Mapping[Audience, Set[SeriesName]]) -> Audience:
        """Return who is shown the value of a series once these are not held any more."""
        return together(
            audience
            for audience, held in self.held.items()
            if name not in held or name in released.get(audience, ())
        )

    def absorb(self, rows: Iterable[Birth], naming: Naming) -> None:
        """Take over what has been stored."""
        for key, time, shown in rows:
            self._born[key] = time
            name = name_of(key, naming)
            self.starts[name] = min(time, self.starts.get(name, NEVER))
            for audience, held in self.held.items():
                if audience in shown:
                    held.pop(name, None)
                else:
                    held.setdefault(name, NEVER)


def name_of(key: SeriesKey, naming: Naming) -> SeriesName:
    """Return the labels of a series; empty where it has none."""
    family, project, model, tool = key
    return (
        family,
        naming.project.get(project, ""),
        naming.model.get(model, ""),
        naming.tool.get(tool, ""),
    )
