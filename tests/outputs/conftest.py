"""Servers that are shared by the tests of a module, as starting one takes its time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter.outputs.web import WebServer, bind
from tests.outputs.certificates import Folder
from tests.outputs.serving import FakePages, Serve


@pytest.fixture(scope="module")
def pages_of_all() -> FakePages:
    return FakePages()


@pytest.fixture
def pages(pages_of_all: FakePages) -> FakePages:
    """What all servers show, as new for each test."""
    pages_of_all.reset()
    return pages_of_all


@pytest.fixture(scope="module")
def server_of_all(pages_of_all: FakePages) -> Iterator[WebServer]:
    server = WebServer(
        pages_of_all,
        [bind("127.0.0.1", 0)],
        version="1.2.3",
        allowed_hosts=["exporter", "metrics.example."],
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def server(server_of_all: WebServer, pages: FakePages) -> WebServer:
    """A server with the real limits, shared by all tests that do not stop it."""
    return server_of_all


@pytest.fixture
def serve(pages: FakePages) -> Iterator[Serve]:
    """Starts servers with limits of their own and stops them after the test."""
    running: list[WebServer] = []

    def start(**options: Any) -> WebServer:
        server = WebServer(pages, [bind("127.0.0.1", 0)], version="1.2.3", **options)
        running.append(server)
        server.start()
        return server

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder for a web configuration file, with certificates."""
    return Folder(tmp_path)
