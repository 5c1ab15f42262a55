"""The parts that every command is put together from, made as the settings say."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from .ledger.budgets import Budgets, Calendar, Period
from .ledger.errors import LedgerError, LedgerUnavailableError
from .ledger.labels import LabelRules
from .ledger.pricing import PriceBook, PriceOverride, PriceTier
from .ledger.stats import Stats
from .ledger.store import Ledger
from .sources import ConfigError
from .transcripts.files import ERROR_REASONS
from .transcripts.shapes import Reason
from .values import LOCAL

if TYPE_CHECKING:
    from .outputs.receiver import Receiver
    from .outputs.sender import Sender
    from .outputs.web_config import WebConfig
    from .prices import ModelPrice, PriceAbove
    from .settings import Settings, Spendable

logger = logging.getLogger(__name__)

_RETRY_SECONDS: Final = 5.0


class ServiceError(Exception):
    """The program cannot go on; the message is one line and says what to do."""


def now() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def roots_of(settings: Settings) -> list[str]:
    """Return the folders that hold transcripts."""
    return [str(root) for root in settings.transcripts.root]


def new_stats() -> Stats:
    """Return the exporter's own counts, all reasons at 0."""
    return Stats(time.time(), Reason, ERROR_REASONS)


@contextmanager
def opened_ledger(
    settings: Settings, address: str = "", stop: threading.Event | None = None
) -> Iterator[Ledger]:
    """Open the ledger for as long as the block runs; its errors become ServiceError.

    With `stop`, a ledger that cannot be opened for the moment (full disk, busy file) is waited for
    until it is set.
    """
    overrides = {name: _override(price) for name, price in settings.pricing.models.items()}
    book = PriceBook(overrides, settings.pricing.multiplier)
    labels = settings.labels
    rules = LabelRules(labels.project, labels.projects, labels.owner)
    waiting = False
    try:
        while True:
            try:
                hold = round(1000 * settings.web.zero_first_hold)
                ledger = Ledger(settings.ledger.path, book, now, rules, address, hold)
                break
            except LedgerUnavailableError as error:
                if not waiting:
                    logger.error("waiting for the ledger", extra={"fields": {"error": str(error)}})
                waiting = True
                if stop is None or stop.wait(_RETRY_SECONDS):
                    raise
        with closing(ledger):
            yield ledger
    except (LedgerError, LedgerUnavailableError) as error:
        raise ServiceError(str(error)) from None


def budgets_of(settings: Settings) -> Budgets:
    """Return what may be spent, and the calendar."""
    name = settings.budget.timezone
    return Budgets(
        Calendar(None if name == LOCAL else ZoneInfo(name)),
        _amounts(settings.budget),
        {project: _amounts(budget) for project, budget in settings.budget.projects.items()},
    )


def web_config_of(settings: Settings) -> WebConfig | None:
    """Return what the web configuration file says, None without one; raises ConfigError."""
    if settings.web.config_file is None:
        return None
    from .outputs.web_config import WebConfigError, load

    try:
        return load(settings.web.config_file)
    except WebConfigError as error:
        raise ConfigError(str(error)) from None


def receiver_wanted(settings: Settings) -> Receiver | None:
    """Return where to push, None if nothing is pushed; raises ConfigError."""
    if not settings.otlp.on:
        if not settings.web.enabled:
            raise ConfigError("--no-web: nothing is left to do without --otlp")
        return None
    from .outputs.receiver import ReceiverError, receiver_of

    try:
        return receiver_of(os.environ, settings.otlp.endpoint)
    except ReceiverError as error:
        raise ConfigError(str(error)) from None


def sender_of(receiver: Receiver) -> Sender:
    """Return what sends to a receiver; raises ConfigError without the libraries for that."""
    try:
        from .outputs.sender import Sender

        return Sender(receiver)
    except ModuleNotFoundError as error:
        needs = "--otlp: install it with the libraries, as gemini-cli-exporter[otlp]"
        raise ConfigError(f"{needs}: no module {error.name}") from None


def _amounts(budget: Spendable) -> dict[Period, Decimal]:
    amounts = {Period.DAY: budget.day, Period.WEEK: budget.week, Period.MONTH: budget.month}
    return {period: usd for period, usd in amounts.items() if usd is not None}


def _override(price: ModelPrice) -> PriceOverride:
    above = price.above
    return PriceOverride(
        price=_tier(price) if price.input is not None else None,
        above_tokens=above.tokens if above is not None else 0,
        above=_tier(above) if above is not None else None,
        price_as=price.price_as or "",
        multiplier=price.multiplier,
        start=price.from_ or date.min,
        end=price.to or date.max,
    )


def _tier(price: ModelPrice | PriceAbove) -> PriceTier:
    assert price.input is not None
    assert price.output is not None
    return PriceTier(price.input, price.output, price.cached)
