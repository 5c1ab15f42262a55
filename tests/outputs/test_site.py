"""What the pages answer, to whom, and how, through real sockets."""

from __future__ import annotations

import gzip
import re
import socket
import threading

import pytest

from exporter.outputs.headers import accepts_gzip
from exporter.outputs.web import WebServer
from tests.outputs.serving import BODY, CONTENT_TYPE, HTTP, FakePages, Serve, exchange, status, url

PATHS = ["/", "/metrics", "/-/healthy", "/-/ready"]


def test_metrics_are_the_pages_bytes_with_their_content_type(
    server: WebServer, pages: FakePages
) -> None:
    answer = HTTP.get(url(server), headers={"Accept": "text/plain"})
    assert (answer.status_code, answer.content) == (200, BODY)
    assert answer.headers["Content-Type"] == CONTENT_TYPE
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"
    assert pages.accepts == ["text/plain"]


def test_metrics_before_the_first_scan_are_a_503_that_says_when_to_retry(
    server: WebServer, pages: FakePages
) -> None:
    pages.body = None
    answer = HTTP.get(url(server))
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.text.count("\n") == 1


def test_ready_gives_the_reason_when_it_is_not(server: WebServer, pages: FakePages) -> None:
    assert HTTP.get(url(server, "/-/ready")).status_code == 200
    pages.reason = "the disk is full"
    answer = HTTP.get(url(server, "/-/ready"))
    assert (answer.status_code, answer.text) == (503, "not ready: the disk is full\n")


def test_healthy_is_200_even_when_not_ready(server: WebServer, pages: FakePages) -> None:
    pages.reason, pages.body = "still scanning", None
    assert HTTP.get(url(server, "/-/healthy")).status_code == 200


def test_landing_page_shows_version_state_facts_and_links(server: WebServer) -> None:
    answer = HTTP.get(url(server, "/"))
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    for text in ("gemini-cli-exporter", "1.2.3", "ready", "/home/ana/ledger.db", "1,204"):
        assert text in answer.text
    assert re.findall(r'<a href="([^"]+)"', answer.text) == ["/metrics", "/-/healthy", "/-/ready"]


def test_landing_page_escapes_everything_and_loads_nothing(
    server: WebServer, pages: FakePages
) -> None:
    pages.lines = [("<b>", "<script>alert('&')</script>")]
    pages.reason = "<i>$version"
    answer = HTTP.get(url(server, "/"))
    assert "<b>" not in answer.text
    assert "<script" not in answer.text
    assert "&lt;i&gt;$version" in answer.text
    assert "http" not in answer.text
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")


def test_metrics_can_live_elsewhere(serve: Serve) -> None:
    server = serve(metrics_path="/usage")
    assert HTTP.get(url(server, "/usage")).content == BODY
    assert HTTP.get(url(server, "/metrics")).status_code == 404
    assert '<a href="/usage"' in HTTP.get(url(server, "/")).text


@pytest.mark.parametrize("path", PATHS)
def test_head_has_the_headers_of_get_and_no_body(server: WebServer, path: str) -> None:
    get = HTTP.get(url(server, path))
    request = f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head, _, body = exchange(server, request.encode() + b"Accept-Encoding: gzip\r\n\r\n").partition(
        b"\r\n\r\n"
    )
    assert body == b""
    assert f"content-length: {get.headers['Content-Length']}".encode() in head


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
def test_other_methods_are_405_with_allow(server: WebServer, path: str, method: str) -> None:
    answer = HTTP.request(method, url(server, path))
    assert answer.status_code == 405
    assert set(answer.headers["Allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize("path", ["/metrics/", "/favicon.ico", "/-/quit", "//metrics", "/%2e%2e/x"])
def test_other_paths_are_404_without_redirects(server: WebServer, path: str) -> None:
    assert HTTP.get(url(server, path)).status_code == 404


@pytest.mark.parametrize("target", ["http://evil.example/metrics", "*", "evil.example:443"])
def test_targets_that_are_no_paths_are_404(server: WebServer, target: str) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert status(exchange(server, request.encode())) == 404


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
def test_every_answer_forbids_sniffing_and_has_a_date(server: WebServer, path: str) -> None:
    answer = HTTP.get(url(server, path))
    assert answer.headers.get_list("X-Content-Type-Options") == ["nosniff"]
    assert answer.headers["Date"].endswith(" GMT")
    assert "Server" not in answer.headers
    assert "Access-Control-Allow-Origin" not in answer.headers


# Compression


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("gzip", True),
        ("GZip", True),
        ("gzip, deflate, br", True),
        ("br;q=1.0, gzip;q=0.8, *;q=0.1", True),
        ("*", True),
        ("*;q=0.5", True),
        ("gzip;q=0.001", True),
        ("gzip ; q = 1.000", True),
        ("identity;q=0, gzip", True),
        ("identity;q=0, *", True),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip;q=0, *", False),
        ("*;q=0", False),
        ("identity", False),
        ("identity;q=0", False),
        ("identity, gzip;q=0.5", False),
        ("br", False),
        ("gzip;q=nan", False),
        ("gzip;q=-1", False),
        ("gzip;q=2", False),
        ("gzip;q=", False),
        ("gzip;level=9", False),
        ("gzipped", False),
        (";;,,=;q", False),
        ("gz\xefp, \xb2;q=\xb2", False),
    ],
)
def test_gzip_only_when_the_header_really_allows_it(header: str, wanted: bool) -> None:
    assert accepts_gzip(header) is wanted


def test_metrics_are_compressed_on_request_and_the_same_inside(server: WebServer) -> None:
    zipped = HTTP.get(url(server), headers={"Accept-Encoding": "gzip"})
    plain = HTTP.get(url(server), headers={"Accept-Encoding": "identity"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers
    assert zipped.content == plain.content == BODY
    assert int(zipped.headers["Content-Length"]) < len(BODY) / 5


def test_an_unchanged_body_is_compressed_once(
    server: WebServer, pages: FakePages, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages.body = first = BODY + b"# EOF\n"
    calls: list[bytes] = []
    compress = gzip.compress

    def counting(body: bytes, compresslevel: int, *, mtime: float) -> bytes:
        calls.append(body)
        return compress(body, compresslevel, mtime=mtime)

    monkeypatch.setattr(gzip, "compress", counting)
    for _ in range(3):
        assert HTTP.get(url(server)).content == first
    pages.body = BODY
    assert HTTP.get(url(server)).content == BODY
    assert calls == [first, BODY]


def test_all_rendering_is_done_by_one_thread_that_is_not_the_loops(
    server: WebServer, pages: FakePages
) -> None:
    clients = [threading.Thread(target=HTTP.get, args=[url(server)]) for _ in range(4)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert pages.threads == {"web-render_0"}


@pytest.mark.parametrize("name", [b"Accept", b"Accept-Encoding", b"X-Junk"])
@pytest.mark.parametrize(
    "value", [b"\xff\xfe\x80", b"\xc3\xa4;q=\xc2\xb2", b";;q=,,=", b"a" * 9000]
)
def test_odd_header_bytes_are_never_a_500(server: WebServer, name: bytes, value: bytes) -> None:
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    assert status(exchange(server, request + name + b": " + value + b"\r\n\r\n")) == 200


# The Host header


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:9742", 200),
        ("127.0.0.1", 200),
        ("10.1.2.3:80", 200),
        ("[::1]", 200),
        ("[::1]:9742", 200),
        ("[fe80::1%eth0]:9742", 200),
        ("localhost", 200),
        ("LocalHost.:9742", 200),
        (socket.gethostname(), 200),
        (socket.gethostname().upper() + ":9742", 200),
        ("exporter:9742", 200),
        ("Metrics.Example", 200),
        ("evil.example", 421),
        ("evil.example:9742", 421),
        ("127.0.0.1.evil.example", 421),
        ("sub.metrics.example", 421),
        ("localhost.evil.example", 421),
        ("[evil.example]", 421),
        ("[::1", 421),
        ("127.0.0.1:99:99", 421),
        ("a b", 421),
        ("\xe4\xb2", 421),
        ("", 400),
    ],
)
def test_hosts(server: WebServer, host: str, expected: int) -> None:
    request = f"GET /-/healthy HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    answer = exchange(server, request.encode("latin-1"))
    assert status(answer) == expected
    assert b"nosniff" in answer
    assert (b"--web.allowed-host" in answer) is (expected == 421)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_missing_host_is_400(server: WebServer, version: str) -> None:
    answer = exchange(server, f"GET / HTTP/{version}\r\n\r\n".encode())
    assert status(answer) == 400
    assert b"nosniff" in answer


def test_two_hosts_are_400(server: WebServer) -> None:
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    assert status(exchange(server, request)) == 400
