"""Who looks at the series, and since when: what is born later would be missed by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from enum import IntFlag
from functools import reduce
from operator import or_
from typing import Final


class Audience(IntFlag):
    """Who looks on, each with a view of its own: scrapers, and the receiver of OTLP."""

    SCRAPERS = 1
    RECEIVER = 2


def together(audiences: Iterable[Audience]) -> Audience:
    """Return all of them as one."""
    return reduce(or_, audiences, Audience(0))


NEVER: Final = 1 << 62
"""A time, in milliseconds since the epoch, that nothing reaches."""

EVERYBODY: Final = together(Audience)


class Attendance:
    """When each audience asked for the first time, and what of that the ledger's file holds.

    Any thread may call `ask` and `answer`. Times are milliseconds since the epoch.
    """

    def __init__(self, stored: Mapping[Audience, int], unheld: Set[Audience]) -> None:
        """`stored` is what the file holds: of those who were answered, when they first asked.

        From `unheld` nothing is held, whenever they have asked.
        """
        self._unheld = unheld
        self._asked = dict(stored)
        self._answered = set(stored)
        self._stored = set(stored)

    def ask(self, audience: Audience, now: int) -> None:
        """Note that somebody is asking."""
        self._asked.setdefault(audience, now)

    def answer(self, audience: Audience) -> bool:
        """Note that somebody who asked has the answer; return whether that is to be stored."""
        self._answered.add(audience)
        return audience not in self._stored

    def live_from(self, since: int) -> dict[Audience, int]:
        """Return from when on each must see a turn happen: `since`, NEVER if it does not look."""
        looking = self._asked.keys() - self._unheld
        return {audience: since if audience in looking else NEVER for audience in Audience}

    def unstored(self) -> dict[Audience, int]:
        """Return what the file is to be told."""
        return {audience: self._asked[audience] for audience in self._answered - self._stored}

    def stored(self, audiences: Iterable[Audience]) -> None:
        """Note that the file has been told of these."""
        self._stored.update(audiences)
