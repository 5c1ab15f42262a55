"""Basic authentication and extra headers, through real sockets."""

from __future__ import annotations

import base64
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import bcrypt
import httpx
import pytest

from exporter.outputs import auth
from exporter.outputs.web import WebServer, bind
from exporter.outputs.web_config import load
from tests.outputs.certificates import ANA, HASH, USERS, Folder
from tests.outputs.serving import BODY, HTTP, FakePages, Serve, exchange, status, url

RIGHT = ("ana", ANA)
PATHS = ["/", "/metrics", "/-/healthy", "/-/ready", "/nothing"]


class Verifier:
    """Stands in for bcrypt's slow check: counts, and waits while it is held."""

    def __init__(self) -> None:
        self.calls: list[tuple[bytes, bytes]] = []
        self.free = threading.Event()
        self.free.set()

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.calls.append((password, hashed))
        assert self.free.wait(10)
        return bcrypt.checkpw(password, hashed)

    @contextmanager
    def held(self) -> Iterator[None]:
        self.free.clear()
        yield
        self.free.set()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 5
        while len(self.calls) < count and time.monotonic() < deadline:
            time.sleep(0.005)
        assert len(self.calls) == count


@pytest.fixture
def verifier(monkeypatch: pytest.MonkeyPatch) -> Verifier:
    found = Verifier()
    monkeypatch.setattr(auth, "_matches", found)
    return found


@pytest.fixture
def protected(serve: Serve, folder: Folder) -> WebServer:
    """A server for which Ana has a password."""
    folder.write(basic_auth_users=USERS)
    return serve(config=load(folder.config), allowed_hosts=["exporter"])


@pytest.fixture(scope="module")
def locked(
    pages_of_all: FakePages, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WebServer]:
    """A server like `protected`, shared by tests for which it need not be new."""
    folder = Folder(tmp_path_factory.mktemp("locked"))
    path = folder.write(basic_auth_users=USERS)
    server = WebServer(pages_of_all, [bind("127.0.0.1", 0)], version="1", config=load(path))
    server.start()
    yield server
    server.stop()


def ask(server: WebServer, credentials: tuple[str, str], path: str = "/metrics") -> int:
    return HTTP.get(url(server, path), auth=credentials).status_code


@pytest.mark.parametrize("path", PATHS)
def test_every_path_needs_a_user_and_a_password(
    locked: WebServer, pages: FakePages, path: str
) -> None:
    answer = HTTP.get(url(locked, path))
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith('Basic realm="')
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ask(locked, RIGHT, path) == (404 if path == "/nothing" else 200)


@pytest.mark.parametrize("method", ["HEAD", "POST", "OPTIONS"])
def test_every_method_needs_them_too(locked: WebServer, method: str) -> None:
    assert HTTP.request(method, url(locked)).status_code == 401


@pytest.mark.parametrize(
    "credentials",
    [
        ("ana", "wrong"),
        ("ana", ""),
        ("ana", ANA + " "),
        ("ana", "a\0b"),
        ("ana", "x" * 1000),
        ("Ana", ANA),
        ("", ANA),
        ("bob", ANA),
        ("bob", ""),
    ],
)
def test_wrong_users_and_passwords_are_refused(
    locked: WebServer, credentials: tuple[str, str]
) -> None:
    assert ask(locked, credentials) == 401
    assert ask(locked, RIGHT) == 200
    assert ask(locked, credentials) == 401


def encoded(text: bytes) -> bytes:
    return base64.b64encode(text)


GOOD = encoded(f"ana:{ANA}".encode())


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([b"Basic " + GOOD], 200),
        ([b"bASIC   " + GOOD], 200),
        ([b"Basic " + GOOD, b"Basic " + GOOD], 401),
        ([b"Bearer " + GOOD], 401),
        ([GOOD], 401),
        ([b""], 401),
        ([b"Basic"], 401),
        ([b"Basic ===="], 401),
        ([b"Basic \xff\xfe"], 401),
        ([b"Basic " + encoded(b"ana")], 401),
        ([b"Basic " + encoded(b"\xff\xfe:\xff")], 401),
        ([b"Basic " + encoded(b"ana:" + b"\xff" * 40_000)], 401),
    ],
)
def test_odd_headers_are_never_a_500(
    locked: WebServer, headers: list[bytes], expected: int
) -> None:
    lines = b"".join(b"Authorization: " + header + b"\r\n" for header in headers)
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + lines + b"\r\n"
    assert status(exchange(locked, request)) == expected


def test_the_host_check_comes_first(protected: WebServer, verifier: Verifier) -> None:
    answer = HTTP.get(url(protected), auth=RIGHT, headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert verifier.calls == []
    assert HTTP.get(url(protected), auth=RIGHT, headers={"Host": "exporter"}).status_code == 200


def test_a_long_password_counts_to_its_72nd_byte_as_in_bcrypt(serve: Serve, folder: Folder) -> None:
    long = "x" * 80
    hashed = bcrypt.hashpw(long[:72].encode(), bcrypt.gensalt(4)).decode()
    folder.write(basic_auth_users={"ana": hashed})
    server = serve(config=load(folder.config))
    assert ask(server, ("ana", long)) == 200
    assert ask(server, ("ana", long[:71])) == 401


@pytest.mark.parametrize("prefix", ["$2a$", "$2b$", "$2y$"])
def test_hashes_of_other_programs_are_understood(serve: Serve, folder: Folder, prefix: str) -> None:
    folder.write(basic_auth_users={"ana": HASH.replace("$2b$", prefix)})
    assert ask(serve(config=load(folder.config)), RIGHT) == 200


# Remembering


def test_a_right_password_is_verified_once_and_a_wrong_one_each_time(
    protected: WebServer, verifier: Verifier
) -> None:
    assert [ask(protected, RIGHT) for _ in range(3)] == [200] * 3
    assert len(verifier.calls) == 1
    assert [ask(protected, ("ana", "wrong")) for _ in range(3)] == [401] * 3
    assert len(verifier.calls) == 4
    assert ask(protected, RIGHT) == 200
    assert len(verifier.calls) == 4, "wrong passwords forget nothing"


def test_an_unknown_user_costs_one_verification_of_a_users_hash(
    protected: WebServer, verifier: Verifier
) -> None:
    for user in ("bob", "carol"):
        assert ask(protected, (user, ANA)) == 401
    assert verifier.calls == [(ANA.encode(), HASH.encode())] * 2


def test_what_is_remembered_is_no_password(protected: WebServer) -> None:
    assert ask(protected, RIGHT) == 200
    assert protected._auth is not None
    [(user, digest)] = protected._auth._remembered.items()
    assert (user, len(digest)) == ("ana", 32)


def test_a_changed_password_holds_at_once(
    protected: WebServer, folder: Folder, verifier: Verifier
) -> None:
    assert ask(protected, RIGHT) == 200
    new = bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode()
    folder.write(basic_auth_users={"ana": new})
    assert ask(protected, RIGHT) == 401
    assert ask(protected, ("ana", "new")) == 200


def test_a_removed_user_is_out_at_once(protected: WebServer, folder: Folder) -> None:
    folder.write(basic_auth_users=USERS | {"bob": HASH})
    assert ask(protected, ("bob", ANA)) == 200
    folder.write(basic_auth_users=USERS)
    assert ask(protected, ("bob", ANA)) == 401, "though Ana's hash is the same"
    assert ask(protected, RIGHT) == 200


# Floods


def test_verifying_blocks_nobody_who_is_known_already(
    protected: WebServer, verifier: Verifier
) -> None:
    assert ask(protected, RIGHT) == 200
    with verifier.held(), ThreadPoolExecutor() as flood:
        wrong = [flood.submit(ask, protected, ("ana", f"wrong {i}")) for i in range(4)]
        verifier.wait_for(2)
        assert ask(protected, RIGHT) == 200
        verifier.free.set()
        assert [answer.result() for answer in wrong] == [401] * 4


def test_only_a_few_of_one_address_wait_and_the_others_get_429(
    protected: WebServer, verifier: Verifier
) -> None:
    with verifier.held(), ThreadPoolExecutor(8) as flood:
        wrong = [flood.submit(ask, protected, ("ana", f"wrong {i}")) for i in range(8)]
        while sum(answer.done() for answer in wrong) < 4:
            time.sleep(0.005)
        assert len(verifier.calls) == 1
        verifier.free.set()
        assert sorted(answer.result() for answer in wrong) == [401] * 4 + [429] * 4
    answer = HTTP.get(url(protected), auth=RIGHT)
    assert answer.status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second loopback address")
def test_addresses_take_turns(protected: WebServer, verifier: Verifier) -> None:
    """A client that was never verified waits for one of a flood's verifications, not for all."""

    def from_other(address: str) -> int:
        transport = httpx.HTTPTransport(local_address=address)
        with httpx.Client(transport=transport, trust_env=False) as client:
            return client.get(url(protected), auth=RIGHT).status_code

    with verifier.held(), ThreadPoolExecutor(8) as pool:
        wrong = [pool.submit(ask, protected, ("ana", f"wrong {i}")) for i in range(4)]
        verifier.wait_for(1)
        right = pool.submit(from_other, "127.0.0.2")
        protected_lines = protected._auth._lines if protected._auth is not None else {}
        while len(protected_lines) < 2:
            time.sleep(0.005)
        verifier.free.set()
        assert right.result() == 200
        assert [answer.result() for answer in wrong] == [401] * 4
    assert [password == ANA.encode() for password, _ in verifier.calls].index(True) <= 1
    assert protected_lines == {}, "nothing is kept of those who waited"


def test_two_with_the_same_right_password_are_verified_once(
    protected: WebServer, verifier: Verifier
) -> None:
    with verifier.held(), ThreadPoolExecutor() as pool:
        both = [pool.submit(ask, protected, RIGHT) for _ in range(2)]
        verifier.wait_for(1)
        verifier.free.set()
        assert [answer.result() for answer in both] == [200] * 2
    assert len(verifier.calls) == 1


def test_a_flood_of_wrong_passwords_delays_no_scrape(serve: Serve, folder: Folder) -> None:
    """With the real, slow bcrypt: the scrape waits for none of it, and costs about as before."""
    hashed = bcrypt.hashpw(ANA.encode(), bcrypt.gensalt(10)).decode()
    folder.write(basic_auth_users={"ana": hashed})
    server = serve(config=load(folder.config))

    def scrape() -> float:
        begun = time.perf_counter()
        assert ask(server, RIGHT) == 200
        return time.perf_counter() - begun

    verifying = scrape()
    undisturbed = statistics.median(scrape() for _ in range(15))
    done = threading.Event()

    def flood() -> None:
        while not done.is_set():
            ask(server, ("ana", "wrong"))

    flooders = [threading.Thread(target=flood) for _ in range(3)]
    for flooder in flooders:
        flooder.start()
    disturbed = statistics.median(scrape() for _ in range(15))
    done.set()
    for flooder in flooders:
        flooder.join()
    assert disturbed < max(verifying / 2, 8 * undisturbed)


# Extra headers


def test_extra_headers_are_in_every_answer_and_over_the_pages_own(
    serve: Serve, folder: Folder
) -> None:
    headers = {
        "Content-Security-Policy": "default-src 'self'",
        "Strict-Transport-Security": "max-age=60",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "deny",
    }
    folder.write(http_server_config={"headers": headers}, basic_auth_users=USERS)
    server = serve(config=load(folder.config))
    answers = [HTTP.get(url(server, path), auth=RIGHT) for path in PATHS]
    answers += [
        HTTP.get(url(server)),
        HTTP.get(url(server), headers={"Host": "evil.example"}),
        HTTP.post(url(server), auth=RIGHT),
    ]
    assert [answer.status_code for answer in answers] == [200] * 4 + [404, 401, 421, 405]
    for answer in answers:
        for name, value in headers.items():
            assert answer.headers.get_list(name) == [value]
    assert answers[1].content == BODY


# The warning


@pytest.mark.parametrize(
    ("sections", "warned"),
    [
        ({}, True),
        ({"tls": {}}, True),
        (
            {
                "tls": {
                    "client_ca_file": "clients.pem",
                    "client_auth_type": "VerifyClientCertIfGiven",
                }
            },
            True,
        ),
        (
            {
                "tls": {
                    "client_ca_file": "clients.pem",
                    "client_auth_type": "RequireAndVerifyClientCert",
                }
            },
            False,
        ),
        ({"users": USERS}, False),
    ],
    ids=["nothing", "TLS only", "certificate if given", "certificate", "password"],
)
def test_listening_beyond_loopback_without_authentication_is_a_warning(
    pages: FakePages,
    folder: Folder,
    caplog: pytest.LogCaptureFixture,
    sections: dict[str, dict[str, str]],
    warned: bool,
) -> None:
    written = {"basic_auth_users": sections.get("users", {})}
    if "tls" in sections:
        written["tls_server_config"] = folder.tls(**sections["tls"])
    folder.write(**written)
    server = WebServer(pages, [bind("0.0.0.0", 0)], version="1", config=load(folder.config))
    server.start()
    server.stop()
    assert ["--web.config.file" in record.message for record in caplog.records] == [True] * warned
