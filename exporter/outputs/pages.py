"""What the web pages show, asked of whoever runs the exporter."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol


class Page(NamedTuple):
    """An answer of `/metrics`.

    `delivered` is called in the worker thread, once, after the complete answer was handed to the
    kernel; never when the client left, was too slow or asked only for the head.
    """

    body: bytes
    content_type: str
    delivered: Callable[[], object] | None = None


class Pages(Protocol):
    """What the pages show.

    `metrics`, what it returned as `delivered`, and `facts` are called in the worker thread, one at
    a time.
    """

    def metrics(self, accept: str, scraper: bool) -> Page | None:
        """Return the page for an Accept header; None until the first scan is complete.

        `scraper` says that it is a GET by a program that keeps what it sees, as Prometheus does.
        While nothing has changed the body should be the same object: it is then not compressed
        again.
        """
        ...

    def not_ready(self) -> str | None:
        """Return None when ready, else the reason; called on the event loop, so never blocking."""
        ...

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of the landing page as names and values, both plain text."""
        ...
