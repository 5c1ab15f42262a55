"""Whether an exposition says what is true: a fast wrong answer is no measurement."""

from collections.abc import Iterator

from prometheus_client.parser import text_string_to_metric_families

from exporter.demo import Truth

Series = tuple[str, ...]

_LABELS = {
    "gemini_cli_turns_total": ("project", "model"),
    "gemini_cli_tokens_total": ("project", "model", "kind"),
    "gemini_cli_tool_calls_total": ("project", "model", "tool"),
    "gemini_cli_tool_errors_total": ("project", "model", "tool"),
    "gemini_cli_tool_cancellations_total": ("project", "model", "tool"),
    "gemini_cli_sessions_total": ("project",),
}


def differences(exposition: str, truth: Truth) -> list[str]:
    """One line for each series whose value is not the truth; a missing series counts as 0."""
    found, wanted = dict(_found(exposition)), dict(_wanted(truth))
    return [
        f"{' '.join(series)}: {found.get(series, 0):,.0f} instead of {wanted.get(series, 0):,}"
        for series in sorted(found.keys() | wanted.keys())
        if found.get(series, 0) != wanted.get(series, 0)
    ]


def _found(exposition: str) -> Iterator[tuple[Series, float]]:
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name in _LABELS:
                labels = (sample.labels[label] for label in _LABELS[sample.name])
                yield (sample.name, *labels), sample.value


def _wanted(truth: Truth) -> Iterator[tuple[Series, int]]:
    for pair, usage in truth.usage.items():
        for kind, value in usage._asdict().items():
            if kind == "turns":
                yield ("gemini_cli_turns_total", *pair), value
            else:
                yield ("gemini_cli_tokens_total", *pair, kind), value
    for key, calls in truth.calls.items():
        for kind, value in calls._asdict().items():
            yield (f"gemini_cli_tool_{kind}_total", *key), value
    for project, value in truth.sessions.items():
        yield ("gemini_cli_sessions_total", project), value
