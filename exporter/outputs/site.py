"""The pages: what `/`, `/metrics`, `/-/healthy` and `/-/ready` answer.

All rendering is done by one worker thread, so that the event loop only moves bytes.
"""

from __future__ import annotations

import asyncio
import gzip
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from . import landing
from .connection import WHEN_TAKEN
from .headers import accepts_gzip
from .pages import Page, Pages

_SCRAPER: Final = "X-Prometheus-Scrape-Timeout-Seconds"
"""The header that Prometheus, vmagent, Alloy and the OpenTelemetry Collector send."""


class Site:
    """The application `app`: what each path answers."""

    def __init__(self, pages: Pages, version: str, metrics_path: str) -> None:
        self._pages = pages
        self._version = version
        self._metrics_path = metrics_path
        self._worker = ThreadPoolExecutor(1, "web-render")
        self._zipped: tuple[bytes, bytes] = (b"", gzip.compress(b""))
        self.app = Starlette(
            routes=[
                Route(metrics_path, self._metrics),
                Route("/", self._landing),
                Route("/-/healthy", self._healthy),
                Route("/-/ready", self._ready),
            ]
        )
        self.app.router.redirect_slashes = False

    def close(self) -> None:
        """End the worker thread."""
        self._worker.shutdown(cancel_futures=True)

    async def _metrics(self, request: Request) -> Response:
        accept = ", ".join(request.headers.getlist("accept"))
        zipped = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
        loop = asyncio.get_running_loop()
        scraper = request.method == "GET" and _SCRAPER in request.headers
        page, body = await loop.run_in_executor(
            self._worker, self._render_metrics, accept, scraper, zipped
        )
        if page is None:
            text = "The first scan of the transcripts is not complete yet.\n"
            return PlainTextResponse(text, 503, {"Retry-After": "5"})
        if page.delivered is not None and request.method == "GET":
            delivered = partial(loop.run_in_executor, self._worker, page.delivered)
            request.scope["state"][WHEN_TAKEN](delivered)
        headers = {"Content-Type": page.content_type, "Vary": "Accept, Accept-Encoding"}
        if body is not page.body:
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    def _render_metrics(
        self, accept: str, scraper: bool, zipped: bool
    ) -> tuple[Page | None, bytes]:
        """Return the page and its body as it is to be sent."""
        page = self._pages.metrics(accept, scraper)
        body = b"" if page is None else page.body
        if page is not None and zipped:
            if self._zipped[0] is not body:
                self._zipped = (body, gzip.compress(body, compresslevel=1, mtime=0))
            body = self._zipped[1]
        return page, body

    async def _landing(self, request: Request) -> Response:
        html = await asyncio.get_running_loop().run_in_executor(self._worker, self._render_landing)
        return HTMLResponse(html, headers={"Content-Security-Policy": landing.policy()})

    def _render_landing(self) -> str:
        reason, facts = self._pages.not_ready(), self._pages.facts()
        return landing.render(self._version, self._metrics_path, reason, facts)

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("healthy\n")

    async def _ready(self, request: Request) -> Response:
        reason = self._pages.not_ready()
        if reason is None:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"not ready: {reason}\n", 503)
