"""The landing page: version, state and ways on, for a person with a browser."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from string import Template
from typing import Final

_STYLE: Final = """
:root { --ink: #1d2430; --soft: #5f6b7a; --line: #e1e5ea; --page: #f6f7f9; --card: #fff;
  --link: #1a5fd0; --good: #1b873f; --wait: #b25c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #97a3b3; --line: #2c3440;
  --page: #12161c; --card: #1a2029; --link: #7fb0ff; --good: #4cc274; --wait: #f0a04b; } }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 42rem; margin: 8vh auto 2rem; padding: 0 1.25rem; }
h1 { margin: 0; font-size: 1.6rem; letter-spacing: -0.01em; }
h1 small { color: var(--soft); font-size: 1rem; font-weight: 400; }
p { margin: 0.35rem 0 1.5rem; color: var(--soft); }
table { width: 100%; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; border-spacing: 0; }
th, td { padding: 0.55rem 1rem; text-align: left; vertical-align: top; overflow-wrap: anywhere; }
tr + tr > * { border-top: 1px solid var(--line); }
th { width: 35%; color: var(--soft); font-weight: 400; }
td { font-variant-numeric: tabular-nums; }
nav { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; margin-top: 1.5rem; }
a { color: var(--link); }
footer { margin-top: 2rem; color: var(--soft); font-size: 0.85rem; }
.good { color: var(--good); }
.wait { color: var(--wait); }
"""

_LANDING: Final = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>gemini-cli-exporter</title>
<link rel="icon" href="data:,">
<style>$style</style>
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
<footer>Documentation of the project: README.md, docs/how-it-counts.md, docs/security.md</footer>
</main>
</body>
</html>
""")


def policy() -> str:
    """Return the Content-Security-Policy: nothing but the page's own style and empty icon."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def render(
    version: str, metrics_path: str, waiting: str | None, facts: Iterable[tuple[str, str]]
) -> str:
    """Return the page as HTML, all texts escaped; `waiting` says why it is not ready."""
    state = '<span class="good">ready</span>'
    if waiting is not None:
        state = f'<span class="wait">not ready: {escape(waiting)}</span>'
    rows = [f"<tr><th>State</th><td>{state}</td></tr>"]
    for name, value in facts:
        rows.append(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>")
    return _LANDING.substitute(
        style=_STYLE, version=escape(version), rows="\n".join(rows), metrics=escape(metrics_path)
    )
