"""Pages to be served, and clients that ask for them through real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import httpx

from exporter.outputs.pages import Page
from exporter.outputs.web import WebServer

BODY = b"# HELP gemini_cli_turns_total Turns.\ngemini_cli_turns_total 3\n" * 50
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
HTTP = httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))


class FakePages:
    """Pages with settable answers, which remember what they were asked and by which thread."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.body: bytes | None = BODY
        self.reason: str | None = None
        self.lines = [("Ledger", "/home/ana/ledger.db"), ("Turns", "1,204")]
        self.accepts: list[str] = []
        self.scrapers: list[bool] = []
        self.delivered = threading.Semaphore(0)
        self.threads: set[str] = set()

    def metrics(self, accept: str, scraper: bool) -> Page | None:
        self.accepts.append(accept)
        self.scrapers.append(scraper)
        self.threads.add(threading.current_thread().name)
        return None if self.body is None else Page(self.body, CONTENT_TYPE, self.note)

    def note(self) -> None:
        self.threads.add(threading.current_thread().name)
        self.delivered.release()

    def not_ready(self) -> str | None:
        return self.reason

    def facts(self) -> list[tuple[str, str]]:
        return self.lines


Serve = Callable[..., WebServer]
"""Starts a server with options of its own."""


def url(server: WebServer, path: str = "/metrics") -> str:
    return f"http://{server.addresses[0]}{path}"


def connect(server: WebServer) -> socket.socket:
    host, _, port = server.addresses[0].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=5)


def exchange(server: WebServer, request: bytes) -> bytes:
    """Send bytes and return all that comes until the server closes."""
    with connect(server) as client:
        client.sendall(request)
        return everything(client)


def everything(client: socket.socket) -> bytes:
    answer = b""
    try:
        while piece := client.recv(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def nothing_more_delivered(server: WebServer, pages: FakePages) -> bool:
    """Tell after the server has done all it had to do; it does one thing after another."""
    for _ in range(3):
        HTTP.get(url(server, "/"))  # The landing page too is made in the worker thread.
    return not pages.delivered.acquire(blocking=False)


def read_answer(client: socket.socket, body: bytes) -> None:
    answer = bytearray()
    while not answer.endswith(body[-100:]):
        piece = client.recv(1_000_000)
        assert piece, "closed too early"
        answer += piece
