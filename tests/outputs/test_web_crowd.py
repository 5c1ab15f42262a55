"""A crowd of silent, slow and malicious clients beside a scrape, plain and over TLS."""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.outputs.web import WebServer, bind
from exporter.outputs.web_config import load
from tests.outputs.certificates import Folder
from tests.outputs.serving import FakePages, Serve, connect, everything, exchange, status

SILENT, SLOW, JUNK, SCRAPES = 100, 10, 100, 15


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_a_scrape_beside_a_crowd_is_about_as_fast_as_alone(
    serve: Serve,
    pages: FakePages,
    folder: Folder,
    caplog: pytest.LogCaptureFixture,
    secure: bool,
) -> None:
    folder.write(**({"tls_server_config": folder.tls()} if secure else {}))
    pages.body = os.urandom(500_000)
    server = serve(config=load(folder.config))
    trust = folder.trusting()

    def scrape() -> float:
        """Return the seconds that one took, by a new connection."""
        begun = time.perf_counter()
        address = f"{server.scheme}://{server.addresses[0]}/metrics"
        answer = scraper.get(address, headers={"Connection": "close"})
        assert len(answer.content) == 500_000
        return time.perf_counter() - begun

    with ExitStack() as crowd:
        scraper = crowd.enter_context(httpx.Client(trust_env=False, verify=trust))
        alone = statistics.median(scrape() for _ in range(SCRAPES))
        for _ in range(SLOW):
            client = crowd.enter_context(connect(server))
            if secure:
                client = crowd.enter_context(trust.wrap_socket(client, server_hostname="localhost"))
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            client.recv(100)
        for _ in range(SILENT):
            crowd.enter_context(connect(server)).send(b"\x16\x03\x01" if secure else b"GET /")
        junk = random.Random(1)
        for _ in range(JUNK):
            client = crowd.enter_context(connect(server))
            with suppress(OSError):
                client.sendall(junk.randbytes(1000) + b"\r\n\r\n")
        beside = statistics.median(scrape() for _ in range(SCRAPES))
    assert beside < 4 * alone + 0.02
    assert caplog.records == []


# Headers of any shape


@pytest.fixture(scope="module")
def patient(pages_of_all: FakePages) -> Iterator[WebServer]:
    server = WebServer(pages_of_all, [bind("127.0.0.1", 0)], version="1")
    server.start()
    yield server
    server.stop()


VALUES = st.one_of(
    st.binary(max_size=60),
    st.lists(
        st.sampled_from(
            b"application/openmetrics-text text/plain gzip identity * */* ; , = q version 0.0.4"
            b" 1.0.0 0 1 \xb2".split(b" ")
        ),
        max_size=12,
    ).map(b"".join),
).map(lambda value: value.translate(None, b"\0\r\n").strip(b" \t"))


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"Accept", b"Accept-Encoding", b"Authorization", b"X-A"]), VALUES
        ),
        max_size=4,
    ),
    st.sampled_from([b"GET", b"HEAD"]),
)
def test_no_header_makes_a_500(
    patient: WebServer, headers: list[tuple[bytes, bytes]], method: bytes
) -> None:
    lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
    request = b" /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n"
    answer = exchange(patient, method + request)
    # What HTTP forbids in a header's value (most control characters) is not ours to read.
    assert status(answer) in ({200} if all(map(readable, headers)) else {200, 400})


def readable(header: tuple[bytes, bytes]) -> bool:
    return all(byte >= 0x20 and byte != 0x7F for byte in header[1])


@settings(max_examples=100)
@given(st.binary(max_size=300))
def test_no_request_makes_a_500_or_a_hang(patient: WebServer, junk: bytes) -> None:
    with connect(patient) as client:
        with suppress(OSError):
            client.sendall(junk + b"\r\n\r\n")
            client.shutdown(1)
        assert status(everything(client)) in {0, 400, 404, 405, 421}
