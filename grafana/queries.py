"""PromQL of the dashboards: selectors, and what several panels ask."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from exporter.outputs.catalog import CATALOG
from exporter.outputs.metric import Type

_SUFFIXES: Final = {
    Type.GAUGE: ("",),
    Type.COUNTER: ("_total",),
    Type.HISTOGRAM: ("_bucket", "_count", "_sum"),
}
_LABELS: Final = {
    metric.name + suffix: metric.labels for metric in CATALOG for suffix in _SUFFIXES[metric.type]
}


class Form(Enum):
    """How a panel wants its answer."""

    OVER_TIME = "over time"
    AT_END = "at the end of the range"
    CELLS = "as columns of a table, at the end of the range"
    BUCKETS = "over time, as rows of a heatmap"


@dataclass(frozen=True, slots=True)
class Query:
    """What one target asks; `legend` names its series by their labels, as in `{{model}}`."""

    expr: str
    legend: str = ""
    form: Form = Form.OVER_TIME


def exporter(name: str, *matchers: str) -> str:
    """Select a metric by exporter only: its own state, and what concerns all of its projects."""
    all_matchers = ",".join(('job=~"$job"', 'instance=~"$instance"', *matchers))
    return f"{name}{{{all_matchers}}}"


def usage(name: str, *matchers: str) -> str:
    """Select a metric by exporter and by those of project and model that it has as labels.

    Raises KeyError if the exporter has no such metric.
    """
    chosen = [f'{label}=~"${label}"' for label in ("project", "model") if label in _LABELS[name]]
    return exporter(name, *chosen, *matchers)


def total(selector: str, by: str = "") -> str:
    """Return what counters grew by in the dashboard's range: as Prometheus extrapolates it."""
    return f"sum{_by(by)}(increase({selector}[$__range]))"


def rate(selector: str, by: str = "", seconds: int = 1) -> str:
    """Return what counters grow by in so many seconds, averaged around each point."""
    factor = "" if seconds == 1 else f" * {seconds}"
    return f"sum{_by(by)}(rate({selector}[$__rate_interval])){factor}"


def rate_by(selector: str, label: str, seconds: int = 1) -> Query:
    """Return the rates by a label, one series for each of its values, named by it."""
    return Query(rate(selector, label, seconds), f"{{{{{label}}}}}")


def ratio(part: str, whole: str) -> str:
    """Return a part of a whole, both of them sums; nothing where there is no whole."""
    return f"{part} / ({whole} > 0)"


def or_zero(expr: str) -> str:
    """Return a sum, or 0 as long as an exporter answers: a series that is not there counts 0."""
    return f"{expr} or 0 * count({exporter('gemini_cli_exporter_build_info')})"


def in_period(selector: str, period: str) -> str:
    """Return the value of an event-time gauge, also of exporters that do not answer now.

    A machine that sleeps has spent what it has spent: its last value in the dashboard's range
    stands until the calendar period that it belongs to is over.
    """
    end = exporter("gemini_cli_period_end_timestamp_seconds", f'period="{period}"')
    return (
        f"{selector} or last_over_time({selector}[$__range]) and on (job, instance)"
        f" (last_over_time({end}[$__range]) unless {end}) > time()"
    )


def spent(period: str, by: str = "") -> str:
    """Return what the chosen projects spent in a calendar period that has not ended."""
    selector = usage("gemini_cli_spend_usd", f'period="{period}"')
    return f"sum{_by(by)}({in_period(selector, period)})"


def budget_used(period: str) -> str:
    """Return the spent part of each exporter's budget for a period, all projects together."""
    budget = exporter("gemini_cli_budget_usd", f'period="{period}"')
    return f"{_all_spent(period)} / on (job, instance) ({in_period(budget, period)})"


def project_budget_used(period: str) -> str:
    """Return the spent part of each project's budget for a period."""
    by = "job, instance, project"
    budget = usage("gemini_cli_project_budget_usd", f'period="{period}"')
    return f"{spent(period, by)} / on ({by}) ({in_period(budget, period)})"


def forecast(by: str = "") -> str:
    """Return the month's spend at its pace so far; nothing before a fifth of the month is over."""
    month = spent("month", "job, instance")
    return f"sum{_by(by)}({month} / on (job, instance) {_elapsed()})"


def forecast_of_budget() -> str:
    """Return the part of each exporter's monthly budget that its forecast comes to."""
    budget = exporter("gemini_cli_budget_usd", 'period="month"')
    pace = f"{_all_spent('month')} / on (job, instance) {_elapsed()}"
    return f"{pace} / on (job, instance) ({in_period(budget, 'month')})"


def cache_hits(by: str = "", over_time: bool = False) -> str:
    """Return the part of the prompt tokens that came from the cache."""
    grown = rate if over_time else total
    cached = usage("gemini_cli_tokens_total", 'kind="cached"')
    prompt = usage("gemini_cli_tokens_total", 'kind=~"cached|input"')
    return ratio(grown(cached, by), grown(prompt, by))


def tool_errors(by: str = "") -> str:
    """Return the failed part of the tool calls that were not cancelled."""
    calls = total(usage("gemini_cli_tool_calls_total"), by)
    cancelled = total(usage("gemini_cli_tool_cancellations_total"), by)
    failed = total(usage("gemini_cli_tool_errors_total"), by)
    return ratio(failed, f"({calls} - {cancelled})")


def _all_spent(period: str) -> str:
    selector = exporter("gemini_cli_spend_usd", f'period="{period}"')
    return f"sum by (job, instance) ({in_period(selector, period)})"


def _elapsed() -> str:
    """The part of the month that is over, by exporter, from a fifth on."""
    start, end = (
        exporter(f"gemini_cli_period_{edge}_timestamp_seconds", 'period="month"')
        for edge in ("start", "end")
    )
    start, end = f"last_over_time({start}[$__range])", f"last_over_time({end}[$__range])"
    return f"((time() - {start}) / ({end} - {start}) > 0.2)"


def _by(labels: str) -> str:
    return f" by ({labels}) " if labels else ""
