"""Counters by the semantic conventions for generative AI, which are in development.

https://github.com/open-telemetry/semantic-conventions-genai: input tokens contain the cached ones,
output tokens the reasoning ones. The model is the one that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ..ledger.model import TokenUsage
from .metric import Metric, Rows, Type, View
from .otlp_names import Attributed

_KEYS: Final = ("gen_ai.request.model", "project")
_CONSTANT: Final = {
    "gen_ai.operation.name": "generate_content",
    "gen_ai.provider.name": "gcp.gen_ai",
    "gen_ai.token.modality": "unknown",
}


def _counter(part: str, help_text: str, tokens: Callable[[TokenUsage], int]) -> Attributed:
    def read(view: View) -> Rows:
        for (project, model), total in view.snapshot.pairs.items():
            yield (model, project), tokens(total.tokens)

    name = f"gen_ai.client.inference.usage.{part}"
    metric = Metric(
        name.replace(".", "_"), Type.COUNTER, help_text, ("model", "project"), read, "usage"
    )
    return Attributed(metric, name, "{token}", _KEYS, _CONSTANT)


GENAI: Final = (
    _counter(
        "input_tokens",
        "Input tokens, the cached ones and those of tool use prompts included.",
        lambda tokens: tokens.input + tokens.cached + tokens.tool,
    ),
    _counter(
        "output_tokens",
        "Output tokens, the reasoning ones included.",
        lambda tokens: tokens.output + tokens.thoughts,
    ),
    _counter(
        "cache_read.input_tokens",
        "Input tokens that were read from a cache.",
        lambda tokens: tokens.cached,
    ),
    _counter(
        "reasoning.output_tokens",
        "Output tokens that were spent on reasoning.",
        lambda tokens: tokens.thoughts,
    ),
)
"""Switched on by a setting, beside the catalogue."""
