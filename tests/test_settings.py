"""The declaration of the settings: options, defaults, prices, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import ValidationError

from exporter.declaring import PREFIX
from exporter.ledger.labels import ProjectLabel
from exporter.settings import OPTIONS, Ledger, Settings, Transcripts, describe
from exporter.values import ListenAddress
from tests.support import refusal, settings

WriteConfig = Callable[[str | bytes], Path]

pytestmark = pytest.mark.usefixtures("user_home")


def test_every_option_has_a_flag_a_variable_and_a_help_text() -> None:
    assert {option.flag: option.variable for option in OPTIONS} == {
        "--config.file": f"{PREFIX}CONFIG_FILE",
        "--transcripts.root": f"{PREFIX}TRANSCRIPTS_ROOT",
        "--transcripts.rescan-interval": f"{PREFIX}TRANSCRIPTS_RESCAN_INTERVAL",
        "--watch.mode": f"{PREFIX}WATCH_MODE",
        "--ledger.path": f"{PREFIX}LEDGER_PATH",
        "--web.listen-address": f"{PREFIX}WEB_LISTEN_ADDRESS",
        "--web.allowed-host": f"{PREFIX}WEB_ALLOWED_HOST",
        "--web.config.file": f"{PREFIX}WEB_CONFIG_FILE",
        "--web.telemetry-path": f"{PREFIX}WEB_TELEMETRY_PATH",
        "--web.zero-first-hold": f"{PREFIX}WEB_ZERO_FIRST_HOLD",
        "--web.created-timestamps": f"{PREFIX}WEB_CREATED_TIMESTAMPS",
        "--labels.project": f"{PREFIX}LABELS_PROJECT",
        "--labels.owner": f"{PREFIX}LABELS_OWNER",
        "--budget.day": f"{PREFIX}BUDGET_DAY",
        "--budget.week": f"{PREFIX}BUDGET_WEEK",
        "--budget.month": f"{PREFIX}BUDGET_MONTH",
        "--budget.timezone": f"{PREFIX}BUDGET_TIMEZONE",
        "--log.level": f"{PREFIX}LOG_LEVEL",
        "--log.format": f"{PREFIX}LOG_FORMAT",
        "--otlp": f"{PREFIX}OTLP",
        "--otlp.endpoint": f"{PREFIX}OTLP_ENDPOINT",
        "--otlp.genai": f"{PREFIX}OTLP_GENAI",
        "--web": f"{PREFIX}WEB",
    }
    assert all(option.written.help.endswith(".") for option in OPTIONS)


def test_without_any_setting_the_defaults_hold(user_home: Path) -> None:
    found = settings()
    assert found.config.file is None
    assert found.transcripts.root == (user_home / ".gemini",)
    assert found.transcripts.rescan_interval == 30.0
    assert found.ledger.path == user_home / ".local/state/gemini-cli-exporter/ledger.db"
    assert found.web.listen_address == (ListenAddress("127.0.0.1", 9742),)
    assert found.web.allowed_host == ()
    assert found.web.zero_first_hold == 90.0
    assert not found.web.created_timestamps
    assert found.labels.project is ProjectLabel.SLUG
    assert (found.budget.day, found.budget.timezone) == (None, "local")
    assert (found.log.level, found.log.format) == ("info", "logfmt")
    assert found.pricing.multiplier == 1
    assert found.pricing.models == {}


# Prices


def test_own_prices_are_exact_decimals_and_keep_the_name_of_the_model(
    write_config: WriteConfig,
) -> None:
    path = write_config("""
pricing:
  multiplier: 0.5
  models:
    models/my-own_model:
      input: 0.1
      output: 2.5
      above: {tokens: 200_000, input: 0.2, cached: 0.05, output: 5}
      from: 2026-01-01
      to: "2026-07-01"
    free: {input: 0, cached: 0, output: 0}
    gemini-3.5-flash: {price-as: gemini-3.6-flash, multiplier: 1.1}
    gemini-2.5-pro: {price_as: other}
    gemini-2.5-flash: {multiplier: 2}
""")
    pricing = settings("--config.file", str(path)).pricing
    assert pricing.multiplier == Decimal("0.5")
    own = pricing.models["models/my-own_model"]
    assert (own.input, own.cached, own.output) == (Decimal("0.1"), None, Decimal("2.5"))
    assert own.above is not None
    assert (own.above.tokens, own.above.cached) == (200_000, Decimal("0.05"))
    assert (own.from_, own.to) == (date(2026, 1, 1), date(2026, 7, 1))
    assert pricing.models["free"].output == 0
    assert pricing.models["gemini-3.5-flash"].price_as == "gemini-3.6-flash"
    assert pricing.models["gemini-3.5-flash"].multiplier == Decimal("1.1")
    assert pricing.models["gemini-2.5-pro"].price_as == "other"
    assert pricing.models["gemini-2.5-flash"].multiplier == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", ": needs input and output, or price-as, or multiplier"),
        ("{input: 1}", ": needs both input and output"),
        ("{cached: 1}", ": needs both input and output"),
        ("{price-as: x, input: 1, output: 1}", ": price-as and input exclude each other"),
        ("{price-as: ''}", ".price-as: must have at least 1 character"),
        ("{input: -1, output: 1}", ".input: must be greater than or equal to 0, not -1"),
        ("{input: 1, output: 1000001}", ".output: must be less than or equal to 1000000"),
        ("{input: 0.1234567, output: 1}", ".input: must have no more than 6 decimal places"),
        ("{input: .inf, output: 1}", ".input: must be a finite number, not inf"),
        ("{input: true, output: 1}", ".input: must be an integer, float, string or Decimal"),
        ("{input: 1, outptu: 1}", ".outptu: unknown key, did you mean output?"),
        ("{input: 1, output: 1, above: {tokens: 1, input: 1}}", ".above.output: is missing"),
        ("{input: 1, output: 1, above: {tokens: 1.5, input: 1, output: 1}}", ".above.tokens: must"),
        ("{price-as: x, from: 20261008}", ".from: '20261008' is not a date: write for example"),
        ("{price-as: x, from: soon}", ".from: 'soon' is not a date: write for example 2026-10-08"),
        ("{price-as: x, from: 2026-10-08T00:00:00Z}", ".from: '2026-10-08 00:00:00+00:00' is not"),
        ("{price-as: x, from: 2026-10-08, to: 2026-10-08}", ": from must be before to"),
        ("5", ": must be a valid dictionary"),
    ],
)
def test_own_prices_that_cannot_be_used_are_refused(
    write_config: WriteConfig, text: str, message: str
) -> None:
    path = write_config(f"pricing: {{models: {{gemini-x: {text}}}}}")
    expected = f"{path}: pricing.models.gemini-x{message}"
    assert refusal("--config.file", str(path)).startswith(expected)


# The result


def test_settings_are_frozen() -> None:
    found = settings()
    with pytest.raises(ValidationError, match="frozen"):
        found.log = found.log
    with pytest.raises(ValidationError, match="frozen"):
        found.log.level = found.log.level


def test_settings_made_in_code_read_nothing_from_the_surroundings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LOG", "log", f"{PREFIX}LOG_LEVEL", "LOG_LEVEL"):
        monkeypatch.setenv(name, '{"level": "debug"}')
    found = Settings(transcripts=Transcripts(root=(Path("/r"),)), ledger=Ledger(path=Path("/l")))
    assert found.log.level == "info"
    assert found.transcripts.root == (Path("/r"),)


def test_the_description_is_flat_and_written_as_it_is_read(write_config: WriteConfig) -> None:
    path = write_config("pricing: {models: {gemini-x: {input: 0.30, output: 1, from: 2026-01-01}}}")
    found = settings(
        "--config.file", str(path), "--transcripts.root=/r", "--ledger.path=/l.db",
        "--web.listen-address=[::1]:1", "--transcripts.rescan-interval=5400s",
    )  # fmt: skip
    assert describe(found) == {
        "config.file": str(path),
        "transcripts.root": ["/r"],
        "transcripts.rescan-interval": "1h30m",
        "ledger.path": "/l.db",
        "watch.mode": "auto",
        "web.enabled": True,
        "web.listen-address": ["[::1]:1"],
        "web.allowed-host": [],
        "web.telemetry-path": "/metrics",
        "web.zero-first-hold": "1m30s",
        "web.created-timestamps": False,
        "otlp.genai": False,
        "labels.project": "slug",
        "labels.owner": False,
        "budget.timezone": "local",
        "log.level": "info",
        "log.format": "logfmt",
        "pricing.multiplier": "1",
        "pricing.models.gemini-x.input": "0.3",
        "pricing.models.gemini-x.output": "1",
        "pricing.models.gemini-x.multiplier": "1",
        "pricing.models.gemini-x.from": "2026-01-01",
    }
