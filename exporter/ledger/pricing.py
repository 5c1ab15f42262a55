"""What a turn costs: model name, time and prompt size -> rate, from published prices or overrides.

The prices are those of the genai-prices package, read offline. It is imported at the first turn
that needs a price, never at start. A model without a published price has no rate: it is unpriced,
which is not the same as free.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import ROUND_HALF_EVEN, Decimal
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .model import Rate

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import ModelPrice, PriceCalculation

LIBRARY: Final = "genai-prices"

_ALIASES: Final = {"gemini-3-flash": "gemini-3.5-flash"}
"""The CLI writes `gemini-3-flash` for Gemini 3.5 Flash on Code Assist (0.45 and later)."""

_UNRESOLVED: Final = frozenset(
    {"", "auto", "auto-gemini-2.5", "auto-gemini-3", "pro", "flash", "flash-lite", "none"}
    | {"unknown", "other"}
)
"""Names that do not say which model answered."""

_DAY_MS: Final = 86_400_000
_SCHEDULES_MAX: Final = 20_000

Schedule = tuple[tuple[int, Rate], ...]
"""Rates of one model on one day as (threshold, rate), ascending: the last one whose threshold the
prompt exceeds applies to every token of the turn. The first threshold is -1."""


class PriceTier(msgspec.Struct, frozen=True):
    """USD per million tokens; `cached` None means that cached tokens cost the input price."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None


class PriceOverride(msgspec.Struct, frozen=True):
    """A user's own price of one model.

    Either `price` (with `above` from more than `above_tokens` prompt tokens on) or `price_as`, the
    name of the model whose published price applies, or neither: then only the multiplier is ours.
    It holds for event times from `start` (inclusive) to `end` (exclusive), UTC dates.
    """

    price: PriceTier | None = None
    above_tokens: int = 0
    above: PriceTier | None = None
    price_as: str = ""
    multiplier: Decimal = Decimal(1)
    start: date = date.min
    end: date = date.max


def clean_name(model: str) -> str:
    """Return the name to look a model up by: lower case, without path prefix and `@version`."""
    return model.strip().lower().rpartition("/")[2].partition("@")[0].strip()


class PriceBook:
    """Looks up rates and remembers them, one schedule per model and UTC day.

    `multiplier` and the overrides come from the settings; a multiplier is folded into the rate, so
    costs stay linear in the tokens.
    """

    def __init__(
        self,
        overrides: Mapping[str, PriceOverride] | None = None,
        multiplier: Decimal = Decimal(1),
    ) -> None:
        self._overrides = {clean_name(name): price for name, price in (overrides or {}).items()}
        self._multiplier = multiplier
        self._schedules: dict[tuple[str, int], Schedule] = {}
        self._published = _PublishedPrices()

    @property
    def fingerprint(self) -> str:
        """A text that changes when a model may have another rate than before."""
        return repr((library_version(), self._multiplier, sorted(self._overrides.items())))

    def rate(self, model: str, time: int, prompt: int) -> Rate | None:
        """Return the rate of a turn, or None where no price is published.

        `time` is in milliseconds since the epoch, `prompt` the whole prompt in tokens.
        """
        chosen = None
        for threshold, rate in self._schedule(model, time):
            if prompt <= threshold:
                break
            chosen = rate
        return chosen

    def base_rate(self, model: str, time: int) -> Rate | None:
        """Return the rate of the smallest prompts at that time, for display."""
        return self.rate(model, time, 0)

    def _schedule(self, model: str, time: int) -> Schedule:
        key = (model, time // _DAY_MS)
        schedule = self._schedules.get(key)
        if schedule is None:
            if len(self._schedules) >= _SCHEDULES_MAX:
                self._schedules.clear()
                self._published = _PublishedPrices()
            schedule = self._schedules[key] = self._build(clean_name(model), key[1] * _DAY_MS)
        return schedule

    def _build(self, name: str, time: int) -> Schedule:
        when = datetime.fromtimestamp(time / 1000, UTC)
        multiplier = self._multiplier
        override = self._overrides.get(name)
        if override is not None and override.start <= when.date() < override.end:
            multiplier *= override.multiplier
            if override.price is not None:
                tiers = [(-1, override.price)]
                if override.above is not None:
                    tiers.append((override.above_tokens, override.above))
                return _schedule(name, tiers, multiplier, "override")
            if override.price_as:
                source = f"override price_as, {LIBRARY} {library_version()}"
                published = self._published.tiers(clean_name(override.price_as), when)
                return _schedule(*published, multiplier, source)
        published = self._published.tiers(_ALIASES.get(name, name), when)
        return _schedule(*published, multiplier, f"{LIBRARY} {library_version()}")


@cache
def library_version() -> str:
    """Return the version of the price library without importing it."""
    return version(LIBRARY)


def _schedule(
    name: str, tiers: list[tuple[int, PriceTier]], multiplier: Decimal, source: str
) -> Schedule:
    if multiplier != 1:
        source = f"{source}, x{multiplier.normalize():f}"

    def pico(usd_per_million: Decimal) -> int:
        return int((usd_per_million * 1_000_000 * multiplier).to_integral_value(ROUND_HALF_EVEN))

    schedule = []
    for threshold, tier in tiers:
        cached = tier.input if tier.cached is None else tier.cached
        rate = Rate(name, pico(tier.input), pico(cached), pico(tier.output), source)
        schedule.append((threshold, rate))
    return tuple(schedule)


class _PublishedPrices:
    """The library's prices as tiers, each price object of the library examined once.

    The library remembers every name that it was asked for, here in a snapshot that ends with this.
    """

    def __init__(self) -> None:
        # The price object is kept beside its tiers: an id is only unique while its object lives.
        self._known: dict[int, tuple[ModelPrice, list[tuple[int, PriceTier]]]] = {}
        self._snapshot: DataSnapshot | None = None

    def tiers(self, name: str, when: datetime) -> tuple[str, list[tuple[int, PriceTier]]]:
        """Return the published name of a model, which many share, and its tiers.

        There are none where the library does not know the name.
        """
        if name in _UNRESOLVED:
            return name, []
        try:
            found = self._calculate(name, when)
        except LookupError:
            return name, []
        price = found.model_price
        known = self._known.get(id(price))
        if known is None:
            tiers = _tiers(price)
            known = (price, tiers if self._agrees(tiers, name, when) else [])
            self._known[id(price)] = known
        return found.model.id, known[1]

    def _calculate(self, name: str, when: datetime, **tokens: int) -> PriceCalculation:
        from genai_prices import Usage

        if self._snapshot is None:
            from genai_prices.data import providers
            from genai_prices.data_snapshot import DataSnapshot

            self._snapshot = DataSnapshot(providers, from_auto_update=False)
        usage = Usage(**(tokens or {"input_tokens": 0}))
        return self._snapshot.calc(usage, name, "google", None, when)

    def _agrees(self, tiers: list[tuple[int, PriceTier]], name: str, when: datetime) -> bool:
        """Tell whether our arithmetic gives the library's own result at and around each threshold.

        It guards against a later library that prices in a way which these tiers do not describe:
        such a model is unpriced rather than priced wrongly.
        """
        schedule = _schedule(name, tiers, Decimal(1), "")
        sizes = {
            size for start, _ in tiers for size in (start, start + 1, 2 * start + 7) if size > 0
        }
        for prompt in sorted(sizes | {1000}):
            cached, output = prompt // 3, prompt // 5 + 1
            theirs = self._calculate(
                name, when, input_tokens=prompt, cache_read_tokens=cached, output_tokens=output
            ).total_price
            rate = [rate for threshold, rate in schedule if prompt > threshold][-1]
            ours = (prompt - cached) * rate.input + cached * rate.cached + output * rate.output
            if ours != theirs * 10**12:
                return False
        return True


def _tiers(price: ModelPrice) -> list[tuple[int, PriceTier]]:
    kinds = (price.input_mtok, price.cache_read_mtok, price.output_mtok)
    starts = {tier.start for kind in kinds for tier in getattr(kind, "tiers", ())}
    tiers = []
    for threshold in (-1, *sorted(starts)):
        fresh, cached, output = (_price_above(kind, threshold) for kind in kinds)
        # A model that is listed without any price is free of charge (Gemma on the Gemini API).
        tiers.append((threshold, PriceTier(fresh or Decimal(0), output or Decimal(0), cached)))
    return tiers


def _price_above(kind: Any, threshold: int) -> Decimal | None:
    """Return the price of a prompt just over the threshold; `kind` is a Decimal, tiered or None."""
    if kind is None or isinstance(kind, Decimal):
        return kind
    price: Decimal = kind.base
    for tier in kind.tiers:
        if tier.start <= threshold:
            price = tier.price
    return price
