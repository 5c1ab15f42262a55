"""The web configuration file: what is taken, what is refused and how that is said."""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from exporter.outputs.web_config import LiveConfig, WebConfigError, load
from tests.outputs.certificates import HASH, USERS, Folder

VERIFYING = {"client_ca_file": "clients.pem", "client_auth_type": "RequireAndVerifyClientCert"}


def complaint(folder: Folder) -> str:
    """Return the line that says why the file is refused, without the folder's name."""
    with pytest.raises(WebConfigError) as caught:
        load(folder.config)
    line = str(caught.value)
    assert line.startswith(str(folder.config))
    assert "\n" not in line
    return line.replace(f"{folder.path}{os.sep}", "")


@pytest.mark.parametrize("text", ["", "---\n", "{}", "tls_server_config:\nbasic_auth_users:\n"])
def test_an_empty_file_asks_for_nothing(folder: Folder, text: str) -> None:
    folder.put("web.yml", text)
    config = load(folder.config)
    assert (config.tls, config.headers, config.users) == (None, (), {})
    assert not config.authenticates


def test_relative_paths_start_at_the_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    folder.write(tls_server_config=folder.tls())
    assert load(folder.config).tls is not None
    folder.write(
        tls_server_config={
            "cert_file": str(folder.path / "server.pem"),
            "key_file": str(folder.path / "server.key"),
        }
    )
    assert load(folder.config).tls is not None


@pytest.mark.parametrize(
    ("more", "mode", "authenticates"),
    [
        ({}, ssl.CERT_NONE, False),
        ({"client_auth_type": "NoClientCert"}, ssl.CERT_NONE, False),
        (VERIFYING | {"client_auth_type": "VerifyClientCertIfGiven"}, ssl.CERT_OPTIONAL, False),
        (VERIFYING, ssl.CERT_REQUIRED, True),
    ],
    ids=lambda value: value.get("client_auth_type", "default") if isinstance(value, dict) else "",
)
def test_client_auth_types(
    folder: Folder, more: dict[str, str], mode: ssl.VerifyMode, authenticates: bool
) -> None:
    folder.write(tls_server_config=folder.tls(**more))
    config = load(folder.config)
    assert config.tls is not None
    assert config.tls.verify_mode is mode
    assert config.authenticates is authenticates


def test_the_lowest_version_is_1_2_unless_it_is_raised(folder: Folder) -> None:
    versions = []
    for more in ({}, {"min_version": "TLS12"}, {"min_version": "TLS13"}):
        folder.write(tls_server_config=folder.tls(**more))
        tls = load(folder.config).tls
        assert tls is not None
        versions.append(tls.minimum_version.name)
    assert versions == ["TLSv1_2", "TLSv1_2", "TLSv1_3"]


def test_names_and_values_are_texts_whatever_yaml_makes_of_them(folder: Folder) -> None:
    folder.put(
        "web.yml",
        f"basic_auth_users: {{7: '{HASH}', yes: '{HASH}', 2001-99-99: '{HASH}'}}\n"
        "http_server_config: {headers: {X-XSS-Protection: 0}}",
    )
    config = load(folder.config)
    assert [*config.users] == ["7", "yes", "2001-99-99"]
    assert config.headers == ((b"x-xss-protection", b"0"),)


def test_headers_are_taken_and_blank_ones_are_not(folder: Folder) -> None:
    headers = {
        "Strict-Transport-Security": "max-age=60",
        "X-Frame-Options": "deny",
        "X-XSS-Protection": "",
        "X-Content-Type-Options": "nosniff",
    }
    folder.write(http_server_config={"headers": headers})
    assert load(folder.config).headers == (
        (b"strict-transport-security", b"max-age=60"),
        (b"x-frame-options", b"deny"),
    )


@pytest.mark.parametrize(
    ("sections", "line"),
    [
        (
            {"rate_limit": {}},
            (
                "web.yml: rate_limit: is not supported; remove it, there are tls_server_config,"
                " http_server_config, basic_auth_users"
            ),
        ),
        (
            {"tls_server_config": {"cipher_suites": []}},
            (
                "web.yml: tls_server_config.cipher_suites: is not supported; remove it, there are"
                " cert_file, key_file, client_ca_file, client_auth_type, min_version"
            ),
        ),
        (
            {"http_server_config": {"http2": True}},
            "web.yml: http_server_config.http2: is not supported; remove it, there are headers",
        ),
        ({"tls_server_config": []}, "web.yml: tls_server_config: must hold keys and values"),
        ({"basic_auth_users": "ana"}, "web.yml: basic_auth_users: must hold keys and values"),
        (
            {"basic_auth_users": {"ana": "secret"}},
            (
                "web.yml: basic_auth_users.ana: is not a bcrypt hash; make one with"
                " htpasswd -nBC 10 ''"
            ),
        ),
        (
            {"basic_auth_users": {"ana": ["7"]}},
            "web.yml: basic_auth_users.ana: must be a text",
        ),
        (
            {"basic_auth_users": {"ana": HASH.replace("$04$", "$03$")}},
            (
                "web.yml: basic_auth_users.ana: is not a bcrypt hash; make one with"
                " htpasswd -nBC 10 ''"
            ),
        ),
        (
            {"basic_auth_users": {"a:b": HASH}},
            (
                "web.yml: basic_auth_users.a:b: no client can send a name with a colon; rename the"
                " user"
            ),
        ),
        (
            {"http_server_config": {"headers": {"Server": "x"}}},
            (
                "web.yml: http_server_config.headers.Server: cannot be set; there are"
                " Content-Security-Policy, Strict-Transport-Security, X-Content-Type-Options,"
                " X-Frame-Options, X-XSS-Protection"
            ),
        ),
        (
            {"http_server_config": {"headers": {"X-Frame-Options": "maybe"}}},
            "web.yml: http_server_config.headers.X-Frame-Options: must be deny or sameorigin",
        ),
        (
            {"http_server_config": {"headers": {"X-XSS-Protection": "1\r\nSet-Cookie: a"}}},
            "web.yml: http_server_config.headers.X-XSS-Protection: must be one line of ASCII",
        ),
        (
            {"tls_server_config": {"key_file": "server.key"}},
            "web.yml: tls_server_config.cert_file: is missing; name a PEM file",
        ),
        (
            {"tls_server_config": {"cert_file": "server.pem"}},
            "web.yml: tls_server_config.key_file: is missing; name a PEM file",
        ),
        (
            {"tls_server_config": {"cert_file": "a\0b", "key_file": "server.key"}},
            (
                "web.yml: tls_server_config.cert_file: a\0b: embedded null byte; give the path of a"
                " file that the exporter may read"
            ),
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_what_is_refused(folder: Folder, sections: dict[str, Any], line: str) -> None:
    folder.write(**sections)
    assert complaint(folder) == line


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            {"cert_file": "none.pem"},
            (
                "cert_file: none.pem: no such file or directory; give the path of a file that the"
                " exporter may read"
            ),
        ),
        ({"cert_file": "server.key"}, "cert_file: server.key: holds no PEM certificate"),
        ({"key_file": "server.pem"}, "key_file: server.pem: holds no PEM private key"),
        ({"key_file": "other.key"}, "key_file: other.key: does not belong to server.pem"),
        (
            {"key_file": "locked.key"},
            "key_file: locked.key: is encrypted; store it without a passphrase",
        ),
        (
            {"cert_file": "torn.pem"},
            "cert_file: torn.pem or server.key is damaged; make them anew",
        ),
        (
            {"min_version": "TLS10"},
            "min_version: TLS10 is not supported; give TLS12 or TLS13",
        ),
        (
            {"min_version": "TLS11"},
            "min_version: TLS11 is not supported; give TLS12 or TLS13",
        ),
        *(
            (
                {"client_auth_type": kind},
                (
                    f"client_auth_type: {kind} is not supported; there are NoClientCert,"
                    " VerifyClientCertIfGiven, RequireAndVerifyClientCert"
                ),
            )
            for kind in ("RequestClientCert", "RequireAnyClientCert", "requireandverifyclientcert")
        ),
        (
            {"client_auth_type": "RequireAndVerifyClientCert"},
            "client_ca_file: is missing; RequireAndVerifyClientCert needs it",
        ),
        (
            {"client_ca_file": "clients.pem"},
            (
                "client_auth_type: is not RequireAndVerifyClientCert, so client_ca_file has no use;"
                " give both or none"
            ),
        ),
        (
            VERIFYING | {"client_ca_file": "server.key"},
            "client_ca_file: server.key: holds no PEM certificate",
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_what_is_refused_about_tls(folder: Folder, more: dict[str, str], line: str) -> None:
    key = trustme.CA().issue_cert("localhost").private_key_pem.bytes()
    folder.put("other.key", key)
    folder.put(
        "locked.key",
        load_pem_private_key(key, None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
        ),
    )
    folder.put("torn.pem", (folder.path / "server.pem").read_bytes()[:300])
    folder.write(tls_server_config=folder.tls(**more))
    assert complaint(folder) == f"web.yml: tls_server_config.{line}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b: c", "web.yml: is not YAML: mapping values are not allowed here in line 1"),
        ("a: [", "web.yml: is not YAML: "),
        (b"\xff\xfe\x00", "web.yml: is not YAML: "),
        ("\0", "web.yml: is not YAML: "),
        ("[" * 100_000, "web.yml: is not YAML: nested too deeply"),
        ("? [a]\n: b", "web.yml: is not YAML: "),
        ("- a", "web.yml: must hold keys and values"),
        ("words", "web.yml: must hold keys and values"),
    ],
)
def test_what_is_no_web_configuration(folder: Folder, text: str | bytes, words: str) -> None:
    folder.put("web.yml", text)
    assert complaint(folder).startswith(words)


def test_a_missing_file_and_a_folder_are_named(folder: Folder) -> None:
    hint = "; give the path of a file that the exporter may read"
    assert complaint(folder) == f"web.yml: no such file or directory{hint}"
    folder.config.mkdir()
    assert complaint(folder) == f"web.yml: is a directory{hint}"


def test_no_hash_is_ever_in_a_complaint(folder: Folder) -> None:
    folder.write(basic_auth_users={"ana": HASH + "x"})
    assert HASH[:10] not in complaint(folder)


# Reading again


Change = Callable[[Folder], object]
BREAKING: dict[str, Change] = {
    "no YAML": lambda folder: folder.put("web.yml", "a: b: c"),
    "emptied": lambda folder: folder.put("web.yml", ""),
    "removed": lambda folder: folder.config.unlink(),
    "no TLS any more": lambda folder: folder.write(basic_auth_users=USERS),
    "no users any more": lambda folder: folder.write(
        tls_server_config=folder.tls(**VERIFYING), basic_auth_users={}
    ),
    "no client certificates any more": lambda folder: folder.write(
        tls_server_config=folder.tls(), basic_auth_users=USERS
    ),
    "certificate without its key": lambda folder: folder.put(
        "server.key", trustme.CA().issue_cert("a").private_key_pem.bytes()
    ),
    "certificate removed": lambda folder: (folder.path / "server.pem").unlink(),
    "clients' CA removed": lambda folder: (folder.path / "clients.pem").unlink(),
}


def written(folder: Folder) -> LiveConfig:
    folder.write(tls_server_config=folder.tls(**VERIFYING), basic_auth_users=USERS)
    return LiveConfig(load(folder.config))


@pytest.mark.parametrize("change", BREAKING.values(), ids=BREAKING.keys())
def test_a_broken_file_leaves_all_as_it_was_and_is_one_error(
    folder: Folder, change: Change, caplog: pytest.LogCaptureFixture
) -> None:
    live = written(folder)
    before = live.current()
    change(folder)
    assert all(live.current() is before for _ in range(3))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert re.match(
        rf"{re.escape(str(folder.config))}: .*(;|does not|is not)",
        record.__dict__["fields"]["error"],
    )


def test_a_repaired_file_is_taken_and_a_new_fault_is_a_new_error(
    folder: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    live = written(folder)
    before = live.current()
    for _ in range(2):
        folder.put("web.yml", "a: b: c")
        live.current()
        folder.write(tls_server_config=folder.tls(**VERIFYING), basic_auth_users=USERS)
        assert live.current() is not before
        before = live.current()
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"] * 2


def test_a_file_that_is_named_before_it_exists_is_taken_when_it_comes(folder: Folder) -> None:
    live = written(folder)
    before = live.current()
    tls = folder.tls(**VERIFYING, cert_file="new.pem")
    folder.write(tls_server_config=tls, basic_auth_users=USERS)
    assert live.current() is before
    folder.put("new.pem", (folder.path / "server.pem").read_bytes())
    assert live.current() is not before


def test_nothing_is_read_again_without_a_change(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = written(folder)
    monkeypatch.setattr("builtins.open", None)
    assert live.current() is live.current()


def test_protection_can_be_added_without_a_restart(folder: Folder) -> None:
    folder.put("web.yml", "")
    live = LiveConfig(load(folder.config))
    assert not live.current().authenticates
    folder.write(tls_server_config=folder.tls(), basic_auth_users=USERS)
    assert live.current().tls is not None
    assert live.current().authenticates
