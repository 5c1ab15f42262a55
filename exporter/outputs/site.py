"""The pages: what `/`, `/metrics`, `/-/healthy` and `/-/ready` answer, and to whom.

All rendering is done by one worker thread, so that the event loop only moves bytes.
"""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import re
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from html import escape
from string import Template
from typing import Final, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

_HOST: Final = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]+))(?::\d*)?")
_CODING: Final = re.compile(
    r"\s*([^\s;]+)\s*(?:;\s*q\s*=\s*(0(?:\.\d*)?|1(?:\.0*)?)\s*)?", re.ASCII
)

_LANDING: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>gemini-cli-exporter</title>
<link rel="icon" href="data:,">
<style>
:root { --ink: #1d2430; --soft: #5f6b7a; --line: #e1e5ea; --page: #f6f7f9; --card: #fff;
  --link: #1a5fd0; --good: #1b873f; --wait: #b25c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #97a3b3; --line: #2c3440;
  --page: #12161c; --card: #1a2029; --link: #7fb0ff; --good: #4cc274; --wait: #f0a04b; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 42rem; margin: 10vh auto; padding: 0 1.25rem; }
h1 { margin: 0; font-size: 1.6rem; letter-spacing: -0.01em; }
h1 small { color: var(--soft); font-size: 1rem; font-weight: 400; }
p { margin: 0.35rem 0 1.5rem; color: var(--soft); }
table { width: 100%; border-collapse: collapse; background: var(--card);
  border: 1px solid var(--line); border-radius: 8px; border-spacing: 0; }
th, td { padding: 0.55rem 1rem; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
tr + tr > * { border-top: 1px solid var(--line); }
th { width: 35%; color: var(--soft); font-weight: 400; }
td { font-variant-numeric: tabular-nums; }
nav { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; margin-top: 1.5rem; }
a { color: var(--link); }
.good { color: var(--good); }
.wait { color: var(--wait); }
</style>
</head>
<body>
<main>
<h1>gemini-cli-exporter <small>$version</small></h1>
<p>Exact token and cost counters for Gemini CLI, read from its transcripts.</p>
<table>
$rows
</table>
<nav>
<a href="$metrics">Metrics</a><a href="/-/healthy">Health</a><a href="/-/ready">Readiness</a>
</nav>
</main>
</body>
</html>
""")


class Pages(Protocol):
    """What the pages show. `metrics` and `facts` are called in the worker thread, one at a time."""

    def metrics(self, accept: str) -> tuple[bytes, str] | None:
        """Return body and content type for an Accept header; None until the first scan is complete.

        While nothing has changed it should return the same object: it is then not compressed again.
        """
        ...

    def not_ready(self) -> str | None:
        """Return None when ready, else the reason; called on the event loop, so never blocking."""
        ...

    def facts(self) -> list[tuple[str, str]]:
        """Return the lines of the landing page as names and values, both plain text."""
        ...


def accepts_gzip(header: str) -> bool:
    """Return whether an Accept-Encoding value wants gzip at least as much as no coding.

    RFC 9110, section 12.5.3. A part that cannot be read allows nothing.
    """
    weights: dict[str, float] = {}
    for part in header.lower().split(","):
        if match := _CODING.fullmatch(part):
            weights[match[1]] = float(match[2] or 1)
    wanted = weights.get("gzip", weights.get("*", 0.0))
    return wanted > 0 and wanted >= weights.get("identity", 0.0)


class Site:
    """The application `app`: what each path answers, and to which host names."""

    def __init__(
        self, pages: Pages, version: str, metrics_path: str, allowed_hosts: Iterable[str]
    ) -> None:
        """`allowed_hosts` are names, beside this machine's own, under which it may be asked."""
        self._pages = pages
        self._version = version
        self._metrics_path = metrics_path
        self._worker = ThreadPoolExecutor(1, "web-render")
        self._zipped: tuple[bytes, bytes] = (b"", gzip.compress(b""))
        site = Starlette(
            routes=[
                Route(metrics_path, self._metrics),
                Route("/", self._landing),
                Route("/-/healthy", self._healthy),
                Route("/-/ready", self._ready),
            ]
        )
        site.router.redirect_slashes = False
        self.app: ASGIApp = _HostCheck(site, allowed_hosts)

    def close(self) -> None:
        """End the worker thread."""
        self._worker.shutdown(cancel_futures=True)

    async def _metrics(self, request: Request) -> Response:
        accept = ", ".join(request.headers.getlist("accept"))
        zipped = accepts_gzip(",".join(request.headers.getlist("accept-encoding")))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, self._render_metrics, accept, zipped)

    def _render_metrics(self, accept: str, zipped: bool) -> Response:
        page = self._pages.metrics(accept)
        if page is None:
            text = "The first scan of the transcripts is not complete yet.\n"
            return PlainTextResponse(text, 503, {"Retry-After": "5"})
        body, content_type = page
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if zipped:
            if self._zipped[0] is not body:
                self._zipped = (body, gzip.compress(body, compresslevel=1, mtime=0))
            body = self._zipped[1]
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers)

    async def _landing(self, request: Request) -> Response:
        html = await asyncio.get_running_loop().run_in_executor(self._worker, self._render_landing)
        policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    def _render_landing(self) -> str:
        reason = self._pages.not_ready()
        state = '<span class="good">ready</span>'
        if reason is not None:
            state = f'<span class="wait">not ready: {escape(reason)}</span>'
        rows = [f"<tr><th>State</th><td>{state}</td></tr>"]
        for name, value in self._pages.facts():
            rows.append(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>")
        return _LANDING.substitute(
            version=escape(self._version), rows="\n".join(rows), metrics=escape(self._metrics_path)
        )

    async def _healthy(self, request: Request) -> Response:
        return PlainTextResponse("healthy\n")

    async def _ready(self, request: Request) -> Response:
        reason = self._pages.not_ready()
        if reason is None:
            return PlainTextResponse("ready\n")
        return PlainTextResponse(f"not ready: {reason}\n", 503)


class _HostCheck:
    """Refuses requests made under a foreign name, as a page that rebinds its own name would.

    An address is no name, so it is always allowed: rebinding needs a name.
    """

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        own = socket.gethostname()
        names = ("localhost", own, own.partition(".")[0], *allowed)
        self._app = app
        self._names = {name.lower().rstrip(".") for name in names} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        app = self._app
        if not host:
            app = PlainTextResponse("The request has no Host header.\n", 400)
        elif not self._allows(host):
            text = "This host name is not allowed: use an address, or give --web.allowed-host.\n"
            app = PlainTextResponse(text, 421)
        await app(scope, receive, send)

    def _allows(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        name = (match[1] or match[2]).lower().rstrip(".") if match else ""
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in self._names
        return True
