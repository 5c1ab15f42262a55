"""The worked prices, tiers, names, overrides and dates of the price book."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from exporter.ledger.model import TokenUsage
from exporter.ledger.pricing import PriceBook, PriceOverride, PriceTier, clean_name

WORKED = [
    # model, time, input, cached, output, thoughts, tool, USD (by hand from the published rates)
    ("gemini-2.5-pro", "2026-02-10T09:15:00.000Z", 12345, 0, 678, 1234, 0, "0.0345512500"),
    ("gemini-2.5-pro", "2026-02-10T09:16:30.250Z", 187432, 163840, 912, 2048, 0, "0.0795700000"),
    ("gemini-2.5-pro", "2026-03-01T00:00:00.000Z", 200000, 150000, 1000, 500, 0, "0.0962500000"),
    ("gemini-2.5-pro", "2026-03-01T00:00:00.000Z", 200001, 150000, 1000, 500, 0, "0.1850025000"),
    ("gemini-2.5-pro", "2026-03-01T00:00:05.000Z", 199900, 0, 100, 0, 200, "0.5017500000"),
    ("gemini-2.5-flash", "2026-04-20T18:00:00.000Z", 300000, 280000, 1500, 3000, 0, "0.0256500000"),
    ("gemini-2.5-flash-lite", "2026-01-05T12:00:00.000Z", 4321, 1024, 77, 0, 0, "0.0003707400"),
    ("gemini-2.0-flash", "2026-01-05T12:00:00.000Z", 10000, 4000, 250, 0, 0, "0.0008000000"),
    ("gemini-2.0-flash-lite", "2026-01-05T12:00:00.000Z", 10000, 4000, 250, 0, 0, "0.0008250000"),
    (
        *("gemini-3-pro-preview", "2025-12-01T08:30:00.000Z"),
        *(250000, 100000, 2000, 4000, 0, "0.7480000000"),
    ),
    (
        *("gemini-3-flash-preview", "2026-01-20T10:00:00.000Z"),
        *(260000, 200000, 800, 1200, 0, "0.0460000000"),
    ),
    (
        *("gemini-3.1-pro-preview", "2026-06-30T23:59:59.999Z"),
        *(98765, 43210, 543, 2109, 0, "0.1515760000"),
    ),
    (
        *("gemini-3.1-pro-preview-customtools", "2026-06-30T23:59:59.999Z"),
        *(300000, 299000, 10, 0, 0, "0.1237800000"),
    ),
    (
        *("gemini-3.1-flash-lite-preview", "2026-04-02T07:07:07.000Z"),
        *(7777, 7000, 333, 111, 0, "0.0010352500"),
    ),
    ("gemini-3.5-flash", "2026-07-15T15:00:00.000Z", 120000, 100000, 700, 900, 0, "0.0594000000"),
    ("gemini-3-flash", "2026-06-20T15:00:00.000Z", 120000, 100000, 700, 900, 0, "0.0594000000"),
    ("gemini-3.5-flash-lite", "2026-10-01T00:00:00.000Z", 50000, 0, 1234, 0, 0, "0.0180850000"),
    (
        *("models/gemini-3.8-flash", "2026-12-31T23:59:59.999Z"),
        *(100000, 60000, 1000, 3000, 0, "0.0495000000"),
    ),
    ("gemini-3.8-flash", "2027-01-01T00:00:00.000Z", 100000, 60000, 1000, 3000, 0, "0.0990000000"),
    ("gemma-4-31b-it", "2026-05-01T00:00:00.000Z", 50000, 0, 2000, 0, 0, "0.0000000000"),
    ("gemini-3.5-flash", "2026-11-15T09:00:00.000Z", 120000, 100000, 700, 900, 0, "0.0594000000"),
]


def millis(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


NOON = millis("2026-02-10T12:00:00.000Z")


def cost(book: PriceBook, model: str, time: int, usage: TokenUsage) -> Decimal | None:
    rate = book.rate(model, time, usage.prompt)
    if rate is None:
        return None
    pico = sum(count * price for count, price in zip(usage, rate.by_kind(), strict=True))
    return Decimal(pico) / 10**12


@pytest.mark.parametrize("row", WORKED, ids=[f"{i + 1}-{row[0]}" for i, row in enumerate(WORKED)])
def test_worked_example(row: tuple[str, str, int, int, int, int, int, str]) -> None:
    model, time, prompt, cached, output, thoughts, tool, usd = row
    usage = TokenUsage(prompt - cached, cached, output, thoughts, tool)
    assert cost(PriceBook(), model, millis(time), usage) == Decimal(usd)


@pytest.mark.parametrize(
    "model",
    [
        *("auto", "auto-gemini-3", "auto-gemini-2.5", "pro", "flash", "flash-lite", "none"),
        *("", "  ", "models/", "@", "/", "unknown", "gemini-9-made-up", "gpt-5"),
    ],
)
def test_a_name_without_published_price_is_unpriced(model: str) -> None:
    assert PriceBook().rate(model, NOON, 1000) is None


@pytest.mark.parametrize(
    "spelling",
    [
        *("gemini-2.5-pro", "models/gemini-2.5-pro", "publishers/google/models/Gemini-2.5-Pro"),
        *(" google/gemini-2.5-pro@001 ", "gemini-2.5-pro@latest"),
    ],
)
def test_prefix_version_and_case_do_not_change_the_price(spelling: str) -> None:
    assert clean_name(spelling) == "gemini-2.5-pro"
    assert PriceBook().rate(spelling, NOON, 10) == PriceBook().rate("gemini-2.5-pro", NOON, 10)


def test_the_rate_says_where_it_comes_from() -> None:
    rate = PriceBook(multiplier=Decimal("1.10")).rate("gemini-2.5-pro", NOON, 10)
    assert rate is not None
    assert rate.source == "genai-prices 0.2.3, x1.1"
    assert (rate.input, rate.cached, rate.output) == (1_375_000, 137_500, 11_000_000)


def test_multiplier_is_rounded_half_even_to_a_pico_usd_per_token() -> None:
    own = PriceOverride(price=PriceTier(Decimal("0.000001"), Decimal("0.000003")))
    rate = PriceBook({"m": own}, Decimal("0.5")).rate("m", NOON, 1)
    assert rate is not None
    assert (rate.input, rate.cached, rate.output) == (0, 0, 2)


def test_override_wins_over_the_library_with_its_own_tier_and_dates() -> None:
    own = PriceOverride(
        price=PriceTier(Decimal(1), Decimal(2), Decimal("0.5")),
        above_tokens=1000,
        above=PriceTier(Decimal(3), Decimal(4)),
        start=date(2026, 2, 10),
        end=date(2026, 2, 11),
    )
    book = PriceBook({"models/Gemini-2.5-Pro": own})
    low, high = book.rate("gemini-2.5-pro", NOON, 1000), book.rate("gemini-2.5-pro", NOON, 1001)
    assert low is not None
    assert high is not None
    assert (low.input, low.cached, low.output) == (10**6, 500_000, 2 * 10**6)
    assert low.source == "override"
    assert (high.input, high.cached, high.output) == (3 * 10**6, 3 * 10**6, 4 * 10**6)
    for outside in (NOON - 86_400_000, NOON + 86_400_000):
        published = book.rate("gemini-2.5-pro", outside, 10)
        assert published is not None
        assert published.source == "genai-prices 0.2.3"


def test_price_as_takes_the_published_price_of_another_model() -> None:
    book = PriceBook({"house-model": PriceOverride(price_as="gemini-2.5-flash")})
    rate = book.rate("house-model", NOON, 10)
    assert rate is not None
    assert (rate.model, rate.input) == ("gemini-2.5-flash", 300_000)
    assert rate.source == "override price_as, genai-prices 0.2.3"


def test_override_wins_over_the_alias() -> None:
    book = PriceBook({"gemini-3-flash": PriceOverride(price_as="gemini-3-flash-preview")})
    rate = book.rate("gemini-3-flash", NOON, 10)
    assert rate is not None
    assert rate.input == 500_000


def test_fingerprint_changes_with_overrides_and_multiplier() -> None:
    books = [
        PriceBook(),
        PriceBook(multiplier=Decimal(2)),
        PriceBook({"m": PriceOverride(price_as="gemini-2.5-pro")}),
    ]
    assert len({book.fingerprint for book in books}) == 3
    assert PriceBook().fingerprint == PriceBook().fingerprint


def test_every_model_the_cli_records_agrees_with_the_library_on_many_days() -> None:
    """Our integer arithmetic equals the library's to the last digit, on 200 samples a model."""
    from genai_prices import Usage, calc_price

    book = PriceBook()
    models = ["gemini-2.5-pro", "gemini-2.5-flash", "gemini-2.5-flash-lite", "gemini-3-pro-preview"]
    models += ["gemini-3-flash-preview", "gemini-3.1-pro-preview", "gemini-3.1-flash-lite-preview"]
    models += ["gemini-3.1-flash-lite", "gemini-3.5-flash", "gemini-3.5-flash-lite"]
    models += ["gemini-3.8-flash", "gemma-4-31b-it", "gemma-4-26b-a4b-it"]
    for model in models:
        for step in range(40):
            day = datetime(2025, 11, 1 + step % 28, step % 24, tzinfo=UTC)
            time = round(day.timestamp() * 1000) + step * 10 * 86_400_000
            for prompt in (1, 199_999, 200_000, 200_001, 1_000_000):
                usage = TokenUsage(prompt - prompt // 3, prompt // 3, 77, 333, 0)
                theirs = calc_price(
                    Usage(input_tokens=prompt, cache_read_tokens=prompt // 3, output_tokens=410),
                    model,
                    provider_id="google",
                    genai_request_timestamp=datetime.fromtimestamp(time / 1000, UTC),
                )
                assert cost(book, model, time, usage) == theirs.total_price


def test_the_price_library_is_not_imported_before_a_price_is_needed() -> None:
    code = (
        "import sys\n"
        "from exporter.ledger.pricing import PriceBook\n"
        "book = PriceBook(); book.fingerprint\n"
        "assert 'genai_prices' not in sys.modules\n"
        "book.rate('gemini-2.5-pro', 0, 1)\n"
        "assert 'genai_prices' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)
