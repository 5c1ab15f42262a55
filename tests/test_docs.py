"""What the documents show and name exists."""

from __future__ import annotations

import re
from pathlib import Path

from exporter.ledger.labels import CAPS
from exporter.outputs.catalog import CATALOG
from exporter.outputs.metric import Type
from exporter.outputs.prometheus import Exposition
from exporter.transcripts.files import ERROR_REASONS
from exporter.transcripts.lines import MAX_LINE
from exporter.transcripts.reader import MAX_DOCUMENT
from exporter.transcripts.shapes import Reason
from tests.real import RealSet
from tests.support import home

ROOT = Path(__file__).parent.parent
FOLDERS = ("bench", "deploy", "docs", "grafana")
README = (ROOT / "README.md").read_text()
COUNTING = (ROOT / "docs" / "how-it-counts.md").read_text()


def test_the_excerpt_in_the_readme_is_what_the_program_prints(
    real_sets: dict[str, RealSet], tmp_path: Path
) -> None:
    excerpt = README.partition("<!-- excerpt -->\n```\n")[2].partition("```")[0]
    with home(tmp_path, real_sets["0.61.0-subagent"].gemini) as scratch:
        scratch.scan()
        text = Exposition(scratch.ledger, scratch.stats, scratch.clock).render().decode()
    assert excerpt
    assert text.startswith(excerpt)


def test_the_readme_names_every_usage_metric_and_no_other() -> None:
    names = {
        metric.name + ("_total" if metric.type is Type.COUNTER else "")
        for metric in CATALOG
        if not metric.name.startswith("gemini_cli_exporter_")
    }
    table = README.partition("## What is counted")[2].partition("A counter holds")[0]
    # `…_x` continues the prefix of the name before it.
    named = set(re.findall(r"`(?:gemini_cli|…)(_[a-z_]+)", table)) - {"_exporter_"}
    assert {f"gemini_cli{name}" for name in named} == names


def test_the_page_on_counting_names_every_reason_and_limit() -> None:
    table = COUNTING.partition("## What is refused")[2]
    assert {reason for reason in Reason if f"{reason}" not in table} == set()
    assert {"link", "not_regular"} <= set(ERROR_REASONS)
    limits = f"longer than {MAX_LINE >> 20} MB, a `.json` over {MAX_DOCUMENT >> 20} MB"
    assert limits in table
    caps = "more than {project:,} projects, {model} models or {tool} tools".format(**CAPS)
    assert caps in table


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(p for d in FOLDERS for p in ROOT.glob(f"{d}/*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
