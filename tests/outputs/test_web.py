"""The web server, through real sockets."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from exporter.outputs import web
from exporter.outputs.pages import Page
from exporter.outputs.web import WebError, WebServer, bind
from tests.outputs.serving import (
    BODY,
    CONTENT_TYPE,
    HTTP,
    FakePages,
    Serve,
    connect,
    everything,
    exchange,
    status,
    url,
)

ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")

Connect = Callable[[WebServer, int], list[socket.socket]]


@pytest.fixture(scope="module")
def hasty(pages_of_all: FakePages) -> Iterator[WebServer]:
    """A server that soon closes what is left open."""
    server = WebServer(
        pages_of_all, [bind("127.0.0.1", 0)], version="1", request_timeout=0.3, idle_timeout=0.3
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def connect_many() -> Iterator[Connect]:
    """Opens connections and closes them after the test."""
    with ExitStack() as opened:
        yield lambda server, count: [opened.enter_context(connect(server)) for _ in range(count)]


def web_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("web")}


def is_open(client: socket.socket) -> bool:
    """Whether the server answers on a connection."""
    answer = b""
    try:
        client.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not answer.endswith(b"healthy\n"):
            piece = client.recv(65536)
            if not piece:
                return False
            answer += piece
    except OSError:
        return False
    return True


def trickle(client: socket.socket) -> float:
    """Send a byte now and then; return the seconds until the server cut the connection."""
    begun = time.monotonic()
    with suppress(OSError):
        while time.monotonic() - begun < 3:
            client.sendall(b"x")
            time.sleep(0.05)
    return time.monotonic() - begun


# Slow, silent and malicious clients


def test_silent_and_half_silent_clients_delay_nobody(
    server: WebServer, connect_many: Connect
) -> None:
    clients = connect_many(server, 20)
    for client in clients[:10]:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
    assert HTTP.get(url(server)).status_code == 200
    for client in clients:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)


def test_silent_and_half_silent_clients_are_cut(serve: Serve, connect_many: Connect) -> None:
    server = serve(request_timeout=0.2)
    clients = connect_many(server, 20)
    for client in clients[:10]:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: loc")
    assert [everything(client) for client in clients] == [b""] * 20


def test_a_trickle_does_not_extend_the_time_for_a_request(serve: Serve) -> None:
    server = serve(request_timeout=0.3)
    with connect(server) as client:
        assert trickle(client) < 2


def test_the_time_for_a_later_request_begins_with_its_first_byte(serve: Serve) -> None:
    server = serve(request_timeout=0.15, idle_timeout=5)
    with connect(server) as client:
        assert is_open(client)
        time.sleep(0.2)
        assert is_open(client), "idle is not late"
        client.sendall(b"GET /me")
        assert everything(client) == b""


def test_idle_connections_are_closed_after_their_time(serve: Serve) -> None:
    server = serve(idle_timeout=0.2)
    with connect(server) as client:
        assert is_open(client)
        begun = time.monotonic()
        assert everything(client) == b""
        assert 0.1 < time.monotonic() - begun < 2


def test_an_endless_body_is_cut(serve: Serve) -> None:
    server = serve(request_timeout=0.3)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
    with connect(server) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 405")
        assert trickle(client) < 2


def test_slow_readers_are_cut_and_delay_nobody(
    serve: Serve, pages: FakePages, connect_many: Connect
) -> None:
    pages.body = os.urandom(8_000_000)
    server = serve(response_timeout=0.4)
    readers = connect_many(server, 5)
    for reader in readers:
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader.recv(100)
    assert HTTP.get(url(server, "/-/healthy")).status_code == 200
    time.sleep(0.5)
    for reader in readers:
        assert len(everything(reader)) < 8_000_000


def test_a_client_that_took_all_in_the_end_is_idle_and_not_slow(
    serve: Serve, pages: FakePages
) -> None:
    pages.body = os.urandom(8_000_000)
    server = serve(response_timeout=0.4)
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = bytearray()
        while not answer.endswith(pages.body[-100:]):
            answer += client.recv(1_000_000)
        time.sleep(0.5)
        assert is_open(client)


def test_pipelined_requests_wait_until_the_answer_before_is_taken(
    server: WebServer, pages: FakePages
) -> None:
    pages.body = os.urandom(8_000_000)
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 50)
        client.recv(100)
        assert HTTP.get(url(server, "/-/healthy")).status_code == 200
        assert len(pages.accepts) <= 2


def test_pipelined_requests_are_all_answered(server: WebServer) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert exchange(server, request * 5 + last).count(b"HTTP/1.1 200 OK") == 6


def test_a_full_house_evicts_the_longest_idle(serve: Serve, connect_many: Connect) -> None:
    server = serve(max_connections=3)
    clients = connect_many(server, 3)
    for client in clients:
        assert is_open(client)
    assert is_open(clients[0]), "the first is now the last to have spoken"
    assert HTTP.get(url(server)).status_code == 200
    assert everything(clients[1]) == b""
    assert is_open(clients[0])
    assert is_open(clients[2])


def test_a_full_house_does_not_evict_an_answer_under_way_while_others_are_idle(
    serve: Serve, pages: FakePages, connect_many: Connect
) -> None:
    pages.body = os.urandom(8_000_000)
    server = serve(max_connections=2)
    reader, idle = connect_many(server, 2)
    reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    reader.recv(1)
    assert is_open(idle), "younger than the answer"
    assert HTTP.get(url(server, "/-/healthy")).status_code == 200
    assert everything(idle) == b""
    assert len(everything(reader)) > 8_000_000


def test_a_scrape_gets_through_a_flood_of_connections(serve: Serve, connect_many: Connect) -> None:
    server = serve(max_connections=10)
    flood = connect_many(server, 60)
    assert HTTP.get(url(server)).status_code == 200
    assert [everything(client) for client in flood[:50]] == [b""] * 50


def test_a_house_full_of_slow_readers_evicts_the_oldest(
    serve: Serve, pages: FakePages, connect_many: Connect
) -> None:
    pages.body = os.urandom(8_000_000)
    server = serve(max_connections=2)
    readers = connect_many(server, 2)
    for reader in readers:
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader.recv(100)
    assert HTTP.get(url(server, "/-/healthy")).status_code == 200
    assert len(everything(readers[0])) < 8_000_000


JUNK = {
    "long header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 30_000 + b"\r\n",
    "endless line": b"a" * 200_000,
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n",
    "NULs": bytes(1000) + b"\r\n\r\n",
    "wrong version": b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "bad chunk": (
        b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    ),
    "bad chunk after a slow page": (
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"
    ),
    "junk after a request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\x00\x01\r\n\r\n",
    "websocket": (
        b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: upgrade, close\r\n\r\n"
    ),
    "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n\x00\x01",
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK.keys())
def test_junk_is_refused_without_a_line_in_the_log(
    hasty: WebServer, pages: FakePages, junk: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(hasty) as client:
        with suppress(ConnectionError):
            client.sendall(junk)
        assert b" 500 " not in everything(client)
    assert HTTP.get(url(hasty)).content == pages.body
    assert caplog.records == []


@pytest.mark.parametrize("name", ["TLS hello", "NULs", "endless line"])
def test_junk_is_answered_with_400(server: WebServer, name: str) -> None:
    answer = exchange(server, JUNK[name])
    assert status(answer) == 400
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-content-type-options: nosniff" in head
    assert f"content-length: {len(body)}".encode() in head


def test_a_failing_page_is_a_500_and_an_error_in_the_log(
    server: WebServer, pages: FakePages, caplog: pytest.LogCaptureFixture
) -> None:
    pages.lines = [("broken", None)]  # type: ignore[list-item]
    answer = HTTP.get(url(server, "/"))
    assert (answer.status_code, answer.headers["X-Content-Type-Options"]) == (500, "nosniff")
    assert HTTP.get(url(server)).status_code == 200
    assert [record.levelname for record in caplog.records] == ["ERROR"]


# The server's thread


def test_answers_on_one_connection_are_not_held_back_by_nagles_algorithm(
    server: WebServer,
) -> None:
    with connect(server) as client:
        begun = time.monotonic()
        assert all(is_open(client) for _ in range(20))
        assert time.monotonic() - begun < 0.4, "it would be 40 ms each"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_idle_server_never_wakes_up(serve: Serve) -> None:
    def wakes(thread: threading.Thread) -> int:
        text = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
        return sum(int(count) for count in re.findall(r"ctxt_switches:\s*(\d+)", text))

    others = web_threads()
    server = serve()
    with connect(server) as client:
        assert is_open(client)
        HTTP.get(url(server))
        threads = web_threads() - others
        time.sleep(0.05)
        before = [wakes(thread) for thread in threads]
        time.sleep(0.35)
        assert [wakes(thread) for thread in threads] == before
        assert len(threads) == 2, "the loop's and the worker"


def test_one_server_serves_two_sockets_and_knows_their_addresses(pages: FakePages) -> None:
    server = WebServer(pages, [bind("127.0.0.1", 0), bind("127.0.0.1", 0)], version="1")
    server.start()
    assert len(set(server.addresses)) == 2
    for address in server.addresses:
        assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", address)
        assert HTTP.get(f"http://{address}/metrics").content == BODY
    server.stop()


def test_stop_is_quick_closes_idle_and_silent_connections_and_leaves_no_thread(
    serve: Serve, connect_many: Connect
) -> None:
    others = web_threads()
    server = serve()
    idle, silent = connect_many(server, 2)
    assert is_open(idle)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < 1
    assert everything(idle) == everything(silent) == b""
    assert web_threads() == others
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_a_port_can_be_taken_again_at_once(serve: Serve, connect_many: Connect) -> None:
    server = serve()
    [idle] = connect_many(server, 1)
    assert is_open(idle)
    server.stop()
    host, _, port = server.addresses[0].rpartition(":")
    bind(host, int(port)).close()


def test_stop_finishes_the_answer_under_way(
    serve: Serve, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slowly(accept: str, scraper: bool) -> Page:
        asked.set()
        go_on.wait(5)
        return Page(BODY, CONTENT_TYPE)

    monkeypatch.setattr(pages, "metrics", slowly)
    server = serve()
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        asked.wait(5)
        stopper = threading.Thread(target=server.stop)
        stopper.start()
        threading.Timer(0.15, go_on.set).start()
        assert everything(client).endswith(BODY)
        stopper.join()


def test_stop_ends_a_slow_reader_after_the_grace(
    serve: Serve, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "STOP_GRACE", 0.2)
    pages.body = os.urandom(8_000_000)
    server = serve()
    with connect(server) as reader:
        reader.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        reader.recv(100)
        begun = time.monotonic()
        server.stop()
        assert 0.2 < time.monotonic() - begun < 2
        assert len(everything(reader)) < 8_000_000


def test_stop_without_start_and_twice_is_harmless(pages: FakePages) -> None:
    sock = bind("127.0.0.1", 0)
    server = WebServer(pages, [sock], version="1")
    server.stop()
    server.stop()
    assert sock.fileno() == -1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_cannot_start_says_so(pages: FakePages) -> None:
    sock = bind("127.0.0.1", 0)
    server = WebServer(pages, [sock], version="1")
    sock.close()
    with pytest.raises(WebError, match="could not start"):
        server.start()
    server.stop()


# Listening


def test_a_port_in_use_is_an_error_that_names_address_and_remedy() -> None:
    with bind("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(WebError) as caught:
            bind("127.0.0.1", port)
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: address already in use; stop the other program or "
        "choose another port with --web.listen-address"
    )


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [
        ("no-such-host.invalid", 1, "no-such-host.invalid:1: unknown host"),
        ("a\0b", 1, "unknown host"),
        ("." * 300, 1, "unknown host"),
        ("192.0.2.1", 1, "192.0.2.1:1: cannot assign requested address; give --web.listen-address"),
        ("127.0.0.1", 65536, "127.0.0.1:65536: give --web.listen-address a port from 0 to 65535"),
        ("::1", -1, "[::1]:-1: give"),
    ],
)
def test_addresses_that_cannot_be(host: str, port: int, words: str) -> None:
    with pytest.raises(WebError, match=re.escape(words)) as caught:
        bind(host, port)
    assert "\n" not in str(caught.value)
    assert "--web.listen-address" in str(caught.value)


def test_no_permission_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(
        WebError, match=r"127.0.0.1:80: permission denied; choose a port above 1023"
    ):
        bind("127.0.0.1", 80)


@ipv6
@pytest.mark.parametrize("host", ["", "::"])
def test_the_empty_host_listens_on_both_kinds_of_addresses(pages: FakePages, host: str) -> None:
    server = WebServer(pages, [bind(host, 0)], version="1")
    server.start()
    port = server.addresses[0].removeprefix("[::]:")
    for address in ("127.0.0.1", "[::1]"):
        assert HTTP.get(f"http://{address}:{port}/-/healthy").status_code == 200
    server.stop()


def test_without_ipv6_the_empty_host_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_ipv4(self: socket.socket, *args: object) -> None:
        if self.family == socket.AF_INET6:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    monkeypatch.setattr(socket.socket, "bind", only_ipv4)
    with bind("", 0) as sock:
        assert sock.family == socket.AF_INET


def test_a_name_prefers_ipv4() -> None:
    with bind("localhost", 0) as sock:
        assert sock.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "reachable"),
    [
        (["127.0.0.1"], []),
        (["localhost"], []),
        (["0.0.0.0"], ["0.0.0.0"]),
        (["127.0.0.1", "0.0.0.0", "0.0.0.0"], ["0.0.0.0", "0.0.0.0"]),
        pytest.param(["::1"], [], marks=ipv6),
        pytest.param([""], ["[::]"], marks=ipv6),
    ],
    ids=" ".join,
)
def test_listening_beyond_loopback_is_one_warning_at_the_start(
    pages: FakePages, caplog: pytest.LogCaptureFixture, hosts: list[str], reachable: list[str]
) -> None:
    server = WebServer(pages, [bind(host, 0) for host in hosts], version="1")
    server.start()
    server.stop()
    found = [record.__dict__["fields"]["addresses"] for record in caplog.records]
    named = [address.rpartition(":")[0] for addresses in found for address in addresses]
    assert (len(found), named) == (bool(reachable), reachable)
    assert all("anyone who can reach" in record.message for record in caplog.records)
