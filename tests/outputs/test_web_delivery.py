"""Which scrapes count as delivered, through real sockets."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from exporter.outputs.pages import Page
from exporter.outputs.web import WebServer
from tests.outputs.serving import (
    BODY,
    CONTENT_TYPE,
    HTTP,
    FakePages,
    Serve,
    connect,
    everything,
    nothing_more_delivered,
    read_answer,
    url,
)

SCRAPE = (
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Prometheus-Scrape-Timeout-Seconds: 10\r\n\r\n"
)
CLOSING = SCRAPE[:-2] + b"Connection: close\r\n\r\n"
BIG = 8_000_000


def delivered(pages: FakePages) -> bool:
    """Wait for one delivery to be told."""
    return pages.delivered.acquire(timeout=5)


@contextmanager
def narrow(server: WebServer) -> Iterator[socket.socket]:
    """Connect with a small receive buffer, so that a big answer stays with the server."""
    host, _, port = server.addresses[0].rpartition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(5)
        client.connect((host, int(port)))
        yield client


@pytest.mark.parametrize("size", [100, BIG], ids=["small", "big"])
def test_a_client_that_reads_all_is_told_once_for_each_answer(
    server: WebServer, pages: FakePages, size: int
) -> None:
    pages.body = os.urandom(size)
    with connect(server) as client:
        for _ in range(2):
            client.sendall(SCRAPE)
            read_answer(client, pages.body)
            assert delivered(pages)
        assert nothing_more_delivered(server, pages)
    assert pages.threads == {"web-render_0"}


@pytest.mark.parametrize("size", [100, BIG], ids=["small", "big"])
def test_an_answer_after_which_the_connection_closes_is_delivered(
    server: WebServer, pages: FakePages, size: int
) -> None:
    pages.body = os.urandom(size)
    with connect(server) as client:
        client.sendall(CLOSING)
        assert everything(client).endswith(pages.body)
    assert delivered(pages)
    assert nothing_more_delivered(server, pages)


def test_each_of_several_pipelined_requests_is_delivered(
    server: WebServer, pages: FakePages
) -> None:
    with connect(server) as client:
        client.sendall(SCRAPE * 3 + CLOSING)
        assert everything(client).count(BODY) == 4
    assert all(delivered(pages) for _ in range(4))
    assert nothing_more_delivered(server, pages)


def test_nothing_is_delivered_by_head_nor_before_the_first_scan(
    server: WebServer, pages: FakePages
) -> None:
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": "10"}
    assert HTTP.head(url(server), headers=headers).status_code == 200
    pages.body = None
    assert HTTP.get(url(server), headers=headers).status_code == 503
    assert pages.scrapers == [False, True]
    assert nothing_more_delivered(server, pages)


def test_only_a_request_with_the_scrapers_header_is_a_scrape(
    server: WebServer, pages: FakePages
) -> None:
    HTTP.get(url(server))
    HTTP.get(url(server), headers={"x-prometheus-scrape-timeout-seconds": ""})
    assert pages.scrapers == [False, True]


@pytest.mark.parametrize("farewell", ["close", "reset", "half close"])
def test_a_client_that_leaves_before_its_answer_got_nothing(
    server: WebServer, pages: FakePages, monkeypatch: pytest.MonkeyPatch, farewell: str
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(accept: str, scraper: bool) -> Page:
        asked.set()
        go_on.wait(5)
        return Page(BODY, CONTENT_TYPE, pages.note)

    monkeypatch.setattr(pages, "metrics", slowly)
    with connect(server) as client:
        client.sendall(SCRAPE)
        asked.wait(5)
        if farewell == "half close":
            client.shutdown(socket.SHUT_WR)
        else:
            if farewell == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
        for _ in range(2):
            HTTP.get(url(server, "/-/healthy"))  # The loop has seen the farewell by now.
        go_on.set()
        assert nothing_more_delivered(server, pages)


def test_a_slow_reader_has_it_when_it_took_the_last_of_it(
    server: WebServer, pages: FakePages
) -> None:
    pages.body = os.urandom(BIG)
    with narrow(server) as client:
        client.sendall(SCRAPE)
        client.recv(100)
        assert nothing_more_delivered(server, pages)
        read_answer(client, pages.body)
        assert delivered(pages)
    assert nothing_more_delivered(server, pages)


@pytest.mark.parametrize("farewell", ["close", "reset"])
@pytest.mark.parametrize("request_", [SCRAPE, CLOSING], ids=["keep-alive", "closing"])
def test_a_client_that_leaves_in_the_middle_did_not_get_it(
    server: WebServer, pages: FakePages, farewell: str, request_: bytes
) -> None:
    pages.body = os.urandom(BIG)
    with narrow(server) as client:
        client.sendall(request_)
        client.recv(100)
        if farewell == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert nothing_more_delivered(server, pages)


@pytest.mark.parametrize("request_", [SCRAPE, CLOSING], ids=["keep-alive", "closing"])
def test_an_answer_that_was_too_slow_is_not_delivered(
    serve: Serve, pages: FakePages, request_: bytes
) -> None:
    pages.body = os.urandom(BIG)
    server = serve(response_timeout=0.2)
    with narrow(server) as client:
        client.sendall(request_)
        client.recv(100)
        threading.Event().wait(0.4)
        assert len(everything(client)) < BIG
    assert nothing_more_delivered(server, pages)


def test_an_answer_evicted_by_others_is_not_delivered(serve: Serve, pages: FakePages) -> None:
    pages.body = os.urandom(BIG)
    server = serve(max_connections=1)
    with narrow(server) as client:
        client.sendall(SCRAPE)
        client.recv(100)
        assert HTTP.get(url(server, "/-/healthy")).status_code == 200
        assert len(everything(client)) < BIG
    assert nothing_more_delivered(server, pages)
