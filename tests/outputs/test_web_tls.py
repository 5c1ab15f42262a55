"""TLS, through real sockets: handshakes, client certificates, changes while it runs."""

from __future__ import annotations

import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import httpx
import pytest
import trustme

from exporter.outputs.web import WebServer, bind
from exporter.outputs.web_config import load
from tests.outputs.certificates import ANA, USERS, Folder
from tests.outputs.serving import (
    BODY,
    FakePages,
    Serve,
    connect,
    everything,
    read_answer,
    status,
)
from tests.prometheus import Prometheus, needs_prometheus

GET = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Prometheus-Scrape-Timeout-Seconds: 9\r\n\r\n"
CLOSING = GET[:-2] + b"Connection: close\r\n\r\n"
VERIFYING = {"client_ca_file": "clients.pem", "client_auth_type": "RequireAndVerifyClientCert"}


@pytest.fixture
def serve_tls(folder: Folder, serve: Serve) -> Serve:
    """Starts servers with a `tls_server_config` that holds more than the certificate."""

    def start(more: dict[str, str] | None = None, **options: object) -> WebServer:
        folder.write(tls_server_config=folder.tls(**more or {}))
        return serve(config=load(folder.config), **options)

    return start


def get(server: WebServer, trust: ssl.SSLContext, path: str = "/metrics") -> httpx.Response:
    with httpx.Client(trust_env=False, verify=trust) as client:
        return client.get(f"https://{server.addresses[0]}{path}")


@contextmanager
def secured(server: WebServer, trust: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with connect(server) as raw, trust.wrap_socket(raw, server_hostname="localhost") as client:
        yield client


def serial(client: ssl.SSLSocket) -> object:
    return (client.getpeercert() or {})["serialNumber"]


def is_open(client: socket.socket) -> bool:
    """Whether the server answers on a connection."""
    client.sendall(GET)
    read_answer(client, BODY)
    return True


def test_pages_are_served_over_tls(serve_tls: Serve, folder: Folder) -> None:
    server = serve_tls()
    assert server.scheme == "https"
    for path in ("/", "/metrics", "/-/healthy", "/-/ready"):
        assert get(server, folder.trusting(), path).status_code == 200
    with secured(server, folder.trusting()) as client:
        assert all(is_open(client) for _ in range(3))
    with secured(server, folder.trusting()) as client:
        client.sendall(CLOSING)
        assert everything(client).endswith(BODY)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 on this machine")
def test_tls_and_the_host_check_on_ipv6(pages: FakePages, folder: Folder) -> None:
    folder.write(tls_server_config=folder.tls())
    server = WebServer(pages, [bind("::1", 0)], version="1", config=load(folder.config))
    server.start()
    with httpx.Client(trust_env=False, verify=folder.trusting()) as client:
        address = f"https://{server.addresses[0]}/-/healthy"
        codes = [
            client.get(address, headers={"Host": host}).status_code
            for host in (server.addresses[0], "localhost", "evil.example")
        ]
    server.stop()
    assert codes == [200, 200, 421]


@pytest.mark.parametrize(("lowest", "accepted"), [("TLS12", True), ("TLS13", False)])
def test_a_client_below_the_lowest_version_is_refused(
    serve_tls: Serve, folder: Folder, lowest: str, accepted: bool
) -> None:
    server = serve_tls({"min_version": lowest})
    trust = folder.trusting()
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    if accepted:
        assert get(server, trust).status_code == 200
    else:
        with pytest.raises(httpx.ConnectError):
            get(server, trust)
    assert get(server, folder.trusting()).status_code == 200


@pytest.mark.parametrize("kind", ["RequireAndVerifyClientCert", "VerifyClientCertIfGiven"])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_client_certificates(
    serve_tls: Serve, folder: Folder, kind: str, version: ssl.TLSVersion
) -> None:
    server = serve_tls(VERIFYING | {"client_auth_type": kind})

    def allowed(client: trustme.CA | None) -> bool:
        trust = folder.trusting(client=client)
        trust.maximum_version = version
        try:
            return get(server, trust).status_code == 200
        except httpx.TransportError:
            return False

    assert allowed(folder.clients)
    assert not allowed(trustme.CA())
    assert allowed(None) is (kind == "VerifyClientCertIfGiven")


def test_plain_http_on_a_tls_port_is_refused_quietly(
    serve_tls: Serve, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_tls()
    for junk in (GET, b"\0" * 1000, b"\x16\x03\x01\xff\xff" + b"\0" * 70_000, b""):
        with connect(server) as client:
            client.sendall(junk)
            client.shutdown(socket.SHUT_WR)
            assert BODY not in everything(client)
    assert get(server, folder.trusting()).status_code == 200
    assert caplog.records == []


# Limits


def test_silent_handshakes_are_cut(serve_tls: Serve) -> None:
    server = serve_tls(request_timeout=0.2)
    with ExitStack() as opened:
        clients = [opened.enter_context(connect(server)) for _ in range(20)]
        for client in clients[:10]:
            client.sendall(b"\x16\x03\x01\x02")
        assert [everything(client) for client in clients] == [b""] * 20


def test_silent_handshakes_count_as_connections(serve_tls: Serve, folder: Folder) -> None:
    server = serve_tls(max_connections=5)
    with ExitStack() as opened:
        clients = [opened.enter_context(connect(server)) for _ in range(30)]
        assert get(server, folder.trusting()).status_code == 200
        assert [everything(client) for client in clients[:25]] == [b""] * 25


def test_silence_after_the_handshake_is_cut(serve_tls: Serve, folder: Folder) -> None:
    server = serve_tls(request_timeout=0.2)
    with secured(server, folder.trusting()) as client:
        assert everything(client) == b""


def test_stop_ends_handshakes_and_idle_connections(serve_tls: Serve, folder: Folder) -> None:
    server = serve_tls()
    with connect(server) as silent, secured(server, folder.trusting()) as idle:
        assert is_open(idle)
        begun = time.monotonic()
        server.stop()
        assert time.monotonic() - begun < 1.5
        assert everything(silent) == everything(idle) == b""


# Delivery


@pytest.mark.parametrize("request_", [GET, CLOSING], ids=["keep-alive", "closing"])
def test_a_slow_reader_has_it_when_it_took_the_last_of_it(
    serve_tls: Serve, folder: Folder, pages: FakePages, request_: bytes
) -> None:
    """Although TLS has a buffer of its own above that of the socket."""
    pages.body = os.urandom(300_000)
    server = serve_tls()
    host, _, port = server.addresses[0].rpartition(":")
    for sock in server._sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(5)
        raw.connect((host, int(port)))
        with folder.trusting().wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(request_)
            got = len(client.recv(1000))
            while got < 270_000:  # what is left fits into the buffers of asyncio
                got += len(client.recv(10_000))
            assert not pages.delivered.acquire(timeout=0.2)
            read_answer(client, pages.body)
            if request_ == CLOSING:
                assert everything(client) == b""
            else:
                assert pages.delivered.acquire(timeout=5)
        if request_ == CLOSING:
            assert pages.delivered.acquire(timeout=5)
    assert not pages.delivered.acquire(timeout=0.1)


def test_a_client_that_leaves_in_the_middle_did_not_get_it(
    serve_tls: Serve, folder: Folder, pages: FakePages
) -> None:
    pages.body = os.urandom(8_000_000)
    server = serve_tls()
    with secured(server, folder.trusting()) as client:
        client.sendall(GET)
        client.recv(100)
    assert get(server, folder.trusting(), "/").status_code == 200
    assert not pages.delivered.acquire(timeout=0.2)


# Changes while it runs


def test_a_new_certificate_serves_the_next_connection_and_the_old_one_goes_on(
    serve_tls: Serve, folder: Folder
) -> None:
    server = serve_tls()
    with secured(server, folder.trusting()) as old:
        renewed = trustme.CA()
        folder.certify(renewed)
        with secured(server, folder.trusting(authority=renewed)) as new:
            assert serial(new) != serial(old)
            assert is_open(new)
        assert is_open(old)


def test_a_certificate_without_its_key_leaves_the_old_pair_in_force(
    serve_tls: Serve, folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    server = serve_tls()
    folder.put("server.key", trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    for _ in range(3):
        assert get(server, folder.trusting()).status_code == 200
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_new_clients_ca_and_policy_hold_from_the_next_connection_on(
    serve_tls: Serve, folder: Folder
) -> None:
    server = serve_tls(VERIFYING)
    successor = trustme.CA()
    with secured(server, folder.trusting(client=folder.clients)) as old:
        assert is_open(old)
        successor.cert_pem.write_to_path(folder.path / "clients.pem")
        assert get(server, folder.trusting(client=successor)).status_code == 200
        with pytest.raises(httpx.TransportError):
            get(server, folder.trusting(client=folder.clients))
        assert is_open(old)


def test_a_session_of_before_is_not_resumed_after_the_clients_ca_changed(
    serve_tls: Serve, folder: Folder
) -> None:
    server = serve_tls(VERIFYING)
    trust = folder.trusting(client=folder.clients)
    trust.maximum_version = ssl.TLSVersion.TLSv1_2
    with secured(server, trust) as first:
        assert is_open(first)
        session = first.session
    trustme.CA().cert_pem.write_to_path(folder.path / "clients.pem")
    with (
        connect(server) as raw,
        pytest.raises((ssl.SSLError, ConnectionError)),
        trust.wrap_socket(raw, server_hostname="localhost", session=session) as second,
    ):
        is_open(second)


def test_no_request_fails_while_everything_changes(serve_tls: Serve, folder: Folder) -> None:
    server = serve_tls()
    failed: list[Exception] = []
    done = threading.Event()

    def ask(client: Callable[[], object]) -> None:
        while not done.is_set():
            try:
                client()
            except Exception as error:
                failed.append(error)

    trust = folder.trusting()
    with secured(server, trust) as kept:
        askers = [
            threading.Thread(target=ask, args=[lambda: get(server, trust)]),
            threading.Thread(target=ask, args=[lambda: is_open(kept)]),
        ]
        for asker in askers:
            asker.start()
        for number in range(5):
            folder.certify(folder.authority)
            folder.write(
                tls_server_config=folder.tls(min_version=f"TLS1{2 + number % 2}"),
                http_server_config={"headers": {"X-XSS-Protection": str(number)}},
            )
            answer = get(server, trust)
            assert answer.headers["X-XSS-Protection"] == str(number)
        done.set()
        for asker in askers:
            asker.join()
    assert failed == []


def test_tls_and_users_can_be_added_while_it_runs(serve: Serve, folder: Folder) -> None:
    folder.put("web.yml", "")
    server = serve(config=load(folder.config))
    with connect(server) as old:
        assert server.scheme == "http"
        assert is_open(old)
        folder.write(tls_server_config=folder.tls(), basic_auth_users=USERS)
        assert get(server, folder.trusting()).status_code == 401
        old.sendall(GET)
        assert status(old.recv(100)) == 401


# A real Prometheus


@needs_prometheus
def test_a_real_prometheus_scrapes_with_certificate_and_password(
    serve: Serve, folder: Folder, pages: FakePages
) -> None:
    folder.write(tls_server_config=folder.tls(**VERIFYING), basic_auth_users=USERS)
    pages.body = b"# TYPE turns counter\nturns 3\n"
    server = serve(config=load(folder.config))
    folder.authority.cert_pem.write_to_path(folder.path / "authority.pem")
    client = folder.clients.issue_cert("prometheus@example.org")
    client.private_key_and_cert_chain_pem.write_to_path(folder.path / "client.pem")
    job = {
        "job_name": "gemini",
        "scheme": "https",
        "static_configs": [{"targets": [server.addresses[0]]}],
        "basic_auth": {"username": "ana", "password": ANA},
        "tls_config": {
            "ca_file": str(folder.path / "authority.pem"),
            "cert_file": str(folder.path / "client.pem"),
            "key_file": str(folder.path / "client.pem"),
        },
    }
    with Prometheus(folder.path / "prometheus", {}, scrape=[job]) as prometheus:
        prometheus.scraped()
        folder.certify(folder.authority)
        prometheus.scraped()
        assert prometheus.value("turns") == 3
    assert pages.scrapers[:2] == [True, True]
    assert pages.delivered.acquire(timeout=5)
    assert pages.delivered.acquire(timeout=5)
