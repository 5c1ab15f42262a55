"""Where OTLP goes, as the standard variables say; a wrong one is named, and no secret is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.util.re import parse_env_headers

from exporter.outputs.receiver import (
    Compression,
    Protocol,
    Receiver,
    ReceiverError,
    Temporality,
    endpoint_url,
    receiver_of,
)

ALL = "OTEL_EXPORTER_OTLP_"
METRICS = "OTEL_EXPORTER_OTLP_METRICS_"
INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
GRPC = {f"{ALL}PROTOCOL": "grpc"}
DEFAULTS = Receiver(
    "http://localhost:4318/v1/metrics",
    Protocol.HTTP,
    10.0,
    60.0,
    Compression.NONE,
    Temporality.CUMULATIVE,
    "",
    "",
    "",
)


def test_without_any_variable_the_defaults_of_the_standard_hold() -> None:
    assert receiver_of({}, None) == DEFAULTS
    assert receiver_of(GRPC, None) == DEFAULTS._replace(
        endpoint="http://localhost:4317", protocol=Protocol.GRPC
    )


VALUES: dict[str, dict[str, tuple[str, object]]] = {
    "PROTOCOL": {"grpc": ("protocol", Protocol.GRPC), "http/protobuf": ("protocol", Protocol.HTTP)},
    "TIMEOUT": {"1": ("timeout", 0.001), "2500": ("timeout", 2.5)},
    "COMPRESSION": {
        "gzip": ("compression", Compression.GZIP),
        "none": ("compression", Compression.NONE),
    },
    "TEMPORALITY_PREFERENCE": {
        "delta": ("temporality", Temporality.DELTA),
        "DELTA": ("temporality", Temporality.DELTA),
        "LowMemory": ("temporality", Temporality.LOWMEMORY),
        "cumulative": ("temporality", Temporality.CUMULATIVE),
    },
}
EACH = [
    pytest.param(end, text, *said, id=f"{end}={text}")
    for end, texts in VALUES.items()
    for text, said in texts.items()
]


@pytest.mark.parametrize("kind", [ALL, METRICS], ids=["all", "metrics"])
@pytest.mark.parametrize(("end", "text", "field", "value"), EACH)
def test_a_variable_says_what_it_says(
    kind: str, end: str, text: str, field: str, value: object
) -> None:
    found = receiver_of({f"{kind}{end}": f" {text} "}, None)
    assert getattr(found, field) == value
    others = found._replace(**{field: getattr(DEFAULTS, field)})
    assert others._replace(endpoint=DEFAULTS.endpoint) == DEFAULTS


@pytest.mark.parametrize(
    ("end", "general", "field", "kept"),
    [
        ("PROTOCOL", "grpc", "protocol", "http/protobuf"),
        ("TIMEOUT", "1", "timeout", "2000"),
        ("COMPRESSION", "gzip", "compression", "none"),
        ("TEMPORALITY_PREFERENCE", "delta", "temporality", "cumulative"),
    ],
)
def test_the_variable_for_metrics_wins(end: str, general: str, field: str, kept: str) -> None:
    alone = receiver_of({f"{METRICS}{end}": kept}, None)
    both = {f"{ALL}{end}": general, f"{METRICS}{end}": kept}
    assert receiver_of(both, None) == alone
    assert receiver_of(both | {f"{METRICS}{end}": ""}, None) != alone


def test_the_variable_for_all_may_be_wrong_where_another_wins() -> None:
    both = {f"{ALL}TIMEOUT": "soon", f"{METRICS}TIMEOUT": "2000"}
    assert receiver_of(both, None).timeout == 2


@pytest.mark.parametrize(
    ("text", "seconds"), [("1", 0.001), ("250", 0.25), ("60000", 60), ("86400000", 86_400)]
)
def test_the_interval_is_in_milliseconds(text: str, seconds: float) -> None:
    assert receiver_of({INTERVAL: text}, None).interval == seconds


@pytest.mark.parametrize("kind", [ALL, METRICS], ids=["all", "metrics"])
def test_files_are_those_of_the_variables(kind: str, tmp_path: Path) -> None:
    environ = {}
    for end in ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"):
        path = tmp_path / end
        path.write_text("")
        environ[f"{kind}{end}"] = str(path)
    assert receiver_of(environ, None)[-3:] == tuple(environ.values())


# Endpoints

METRICS_URL = "https://in.example:4318/v1/metrics"
ENDPOINTS = {
    "base": ({f"{ALL}ENDPOINT": "https://in.example:4318"}, None, METRICS_URL),
    "base with a slash": ({f"{ALL}ENDPOINT": "https://in.example:4318/"}, None, METRICS_URL),
    "base with a path": (
        {f"{ALL}ENDPOINT": "https://in.example/otlp/"},
        None,
        "https://in.example/otlp/v1/metrics",
    ),
    "whole": ({f"{ALL}ENDPOINT": METRICS_URL}, None, METRICS_URL),
    "capitals": ({f"{ALL}ENDPOINT": "HTTP://in.example"}, None, "http://in.example/v1/metrics"),
    "of metrics": ({f"{METRICS}ENDPOINT": METRICS_URL}, None, METRICS_URL),
    "of metrics with a path": (
        {f"{METRICS}ENDPOINT": "https://in.example/api/v2/otlp"},
        None,
        "https://in.example/api/v2/otlp",
    ),
    "of metrics wins": (
        {f"{METRICS}ENDPOINT": METRICS_URL, f"{ALL}ENDPOINT": "http://other.example"},
        None,
        METRICS_URL,
    ),
    "option": ({}, "https://in.example:4318", METRICS_URL),
    "option, whole": ({}, METRICS_URL, METRICS_URL),
    "option wins": (
        {f"{METRICS}ENDPOINT": "http://other.example", f"{ALL}ENDPOINT": "no URL"},
        "https://in.example:4318",
        METRICS_URL,
    ),
    "address": ({f"{ALL}ENDPOINT": "http://[::1]:4318"}, None, "http://[::1]:4318/v1/metrics"),
    "grpc": (
        GRPC | {f"{ALL}ENDPOINT": "https://in.example:4317"},
        None,
        "https://in.example:4317",
    ),
    "grpc of metrics": (
        GRPC | {f"{METRICS}ENDPOINT": "http://in.example:4317"},
        None,
        "http://in.example:4317",
    ),
    "grpc option": (GRPC, "http://in.example:4317", "http://in.example:4317"),
    "grpc without a scheme": (
        GRPC | {f"{ALL}ENDPOINT": "in.example:4317"},
        None,
        "https://in.example:4317",
    ),
    "grpc insecure": (
        GRPC | {f"{ALL}ENDPOINT": "in.example:4317", f"{ALL}INSECURE": "True"},
        None,
        "http://in.example:4317",
    ),
    "grpc metrics insecure": (
        GRPC
        | {
            f"{ALL}ENDPOINT": "in.example:4317",
            f"{ALL}INSECURE": "false",
            f"{METRICS}INSECURE": "true",
        },
        None,
        "http://in.example:4317",
    ),
    # The scheme says it already.
    "grpc insecure https": (
        GRPC | {f"{ALL}ENDPOINT": "https://in.example:4317", f"{ALL}INSECURE": "true"},
        None,
        "https://in.example:4317",
    ),
}


@pytest.mark.parametrize(("environ", "option", "url"), ENDPOINTS.values(), ids=ENDPOINTS)
def test_an_endpoint_is_found(environ: dict[str, str], option: str | None, url: str) -> None:
    assert receiver_of(environ, option).endpoint == url


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not a URL such as http://localhost:4318"),
        ("collector", "is not a URL"),
        ("collector:4318", "is not a URL"),
        ("ftp://collector", "is not a URL"),
        ("unix:///run/otlp", "is not a URL"),
        ("http://", "is not a URL"),
        ("http://:4318", "is not a URL"),
        ("http://collector:0", "is not a URL"),
        ("http://collector:port", "is not a URL"),
        ("http://collector:70000", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://ana:s3cret@collector", "write them as OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://s3cret@collector", "write them as OTEL_EXPORTER_OTLP_HEADERS"),
        ("http://collector?token=s3cret", "must end with the path"),
        ("http://collector/#s3cret", "must end with the path"),
        ("http://collector/a b", "must end with the path"),
    ],
)
def test_what_is_no_endpoint_is_refused_and_no_secret_told(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        endpoint_url(text)
    assert "s3cret" not in str(caught.value)


# Wrong values

WRONG = {
    "http/json": (f"{ALL}PROTOCOL", "http/json", "must be http/protobuf or grpc, not 'http/json'"),
    "protocol": (f"{METRICS}PROTOCOL", "udp", "must be http/protobuf or grpc, not 'udp'"),
    "compression": (f"{ALL}COMPRESSION", "zstd", "must be none or gzip, not 'zstd'"),
    "temporality": (
        f"{METRICS}TEMPORALITY_PREFERENCE",
        "total",
        "must be cumulative or delta or lowmemory, not 'total'",
    ),
    "timeout": (f"{ALL}TIMEOUT", "10s", "must be milliseconds, as in 10000, not '10s'"),
    "part": (f"{ALL}TIMEOUT", "0.5", "must be milliseconds, as in 10000, not '0.5'"),
    "minus": (f"{ALL}TIMEOUT", "-1", "must be milliseconds, as in 10000, not '-1'"),
    "numerals": (f"{ALL}TIMEOUT", "١٢", "must be milliseconds, as in 10000, not '١٢'"),
    "zero": (f"{METRICS}TIMEOUT", "0", "must be 1 to 86400000 milliseconds, not 0"),
    "interval": (INTERVAL, "minute", "must be milliseconds, as in 60000, not 'minute'"),
    "no interval": (INTERVAL, "0", "must be 1 to 86400000 milliseconds, not 0"),
    "days": (INTERVAL, "86400001", "must be 1 to 86400000 milliseconds, not 86400001"),
    "endpoint": (f"{ALL}ENDPOINT", "collector:4318", "is not a URL such as"),
    "endpoint of metrics": (f"{METRICS}ENDPOINT", "collector", "is not a URL such as"),
    "file": (f"{ALL}CERTIFICATE", "/no/ca.pem", "/no/ca.pem cannot be read: No such file"),
    "folder": (f"{METRICS}CLIENT_KEY", "/", "/ cannot be read: Is a directory"),
}


@pytest.mark.parametrize(("name", "text", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_value_is_one_line_with_the_name_of_its_variable(
    name: str, text: str, says: str
) -> None:
    with pytest.raises(ReceiverError) as caught:
        receiver_of({name: text}, None)
    message = str(caught.value)
    assert message.startswith(f"{name}: ")
    assert says in message
    assert message.isprintable()


def test_an_option_that_is_wrong_is_named() -> None:
    with pytest.raises(ReceiverError, match=r"^--otlp\.endpoint: is not a URL"):
        receiver_of({f"{METRICS}ENDPOINT": METRICS_URL}, "collector")


# Headers

GOOD: dict[str, dict[str, str]] = {
    "": {},
    "api-key=s3cret": {"api-key": "s3cret"},
    "authorization=Bearer%20s3cret": {"authorization": "Bearer s3cret"},
    "Authorization=Bearer s3cret": {"authorization": "Bearer s3cret"},
    "authorization=Basic czNjcmV0Og==": {"authorization": "Basic czNjcmV0Og=="},
    "a=1, b=2 ,,c = 3": {"a": "1", "b": "2", "c": "3"},
    "empty=": {"empty": ""},
    "key=a%2Cb%22%3B%5C": {"key": 'a,b";\\'},
}
BAD = {
    "no name": "=s3cret",
    "blank name": " =s3cret",
    "no value": "s3cret",
    "value with a comma": "key=a,s3cret",
    "name with a space": "api key=s3cret",
    "name with a colon": "authorization: Bearer s3cret=",
    "quotes": 'key="s3cret"',
    "semicolon": "key=s3cret;more",
    "backslash": "key=s3cret\\",
    "new line": "key=s3cret\nmore",
    "new line in code": "key=s3cret%0D%0Amore",
    "NUL": "key=s3cret%00",
    "umlaut": "key=s3cretä",
    "umlaut in code": "key=s3cret%C3%A4",
}


@pytest.mark.parametrize("text", GOOD)
def test_headers_are_left_to_the_exporter(text: str) -> None:
    assert receiver_of({f"{ALL}HEADERS": text}, None) == DEFAULTS


@pytest.mark.parametrize("kind", [ALL, METRICS], ids=["all", "metrics"])
@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_headers_that_the_exporter_would_drop_are_refused_without_what_they_hold(
    kind: str, text: str
) -> None:
    """It would log them, or let whoever makes the request raise an error that holds them."""
    name = f"{kind}HEADERS"
    with pytest.raises(ReceiverError, match=rf"^{name}: must be NAME=VALUE") as caught:
        receiver_of({name: text}, None)
    assert "s3cret" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(("text", "headers"), GOOD.items())
def test_the_exporter_takes_all_headers_that_are_not_refused(
    text: str, headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    assert parse_env_headers(text, liberal=True) == headers
    assert caplog.records == []
