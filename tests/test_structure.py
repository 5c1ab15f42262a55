"""Data flows from transcripts through the ledger to the outputs: who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import exporter

PACKAGE = Path(exporter.__file__).parent
WINGS = {
    "ledger": {"ledger"},
    "transcripts": {"transcripts", "ledger"},
    "outputs": {"outputs", "ledger"},
}
WIRING = {"__main__", "answers", "cli", "oneoffs", "parts", "service"}
SHARED = {
    "settings": {"ledger.labels"},
    "sources": {"ledger.labels"},
    "values": {"ledger.labels", "outputs.receiver"},
}
"""What a module outside of the wings may know of them: how a setting can be written."""
ROOT = ""


def imports(module: str, source: str) -> Iterator[str]:
    """Yield what a module imports of ours: the part below the package, ROOT, or an absolute name.

    `module` is dotted and starts below the package; that of a package ends in `__init__`.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.split(".")[0] == "exporter")
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            if node.module and node.module.split(".")[0] == "exporter":
                yield node.module
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] + (node.module or "").split(".")
            path = [part for part in base if part]
            for alias in node.names:
                # `from . import settings` names a module, `from . import __version__` does not.
                inner = PACKAGE.joinpath(*path, alias.name)
                is_module = inner.is_dir() or inner.with_suffix(".py").is_file()
                yield ".".join([*path, alias.name] if is_module else path)


def allowed(module: str, imported: str) -> bool:
    """Tell whether the module may import that part of the package."""
    source, target = module.split(".")[0], imported.split(".")[0]
    if module == "ledger.model" or target == "exporter":
        return False
    if target == ROOT or source in WIRING:
        return True
    if source in WINGS:
        return target in WINGS[source]
    if imported in SHARED.get(source, ()):
        return True
    return target not in WINGS and target not in WIRING


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_place_allows(module: str) -> None:
    found = imports(module, MODULES[module].read_text(encoding="utf-8"))
    assert [name for name in found if not allowed(module, name)] == []


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("transcripts.reader", "from ..outputs.web import serve", ["outputs.web"]),
        ("transcripts.reader", "from .. import outputs", ["outputs"]),
        ("transcripts.reader", "from ..ledger.model import Turn", []),
        ("transcripts.reader", "from .records import parse", []),
        ("transcripts.reader", "from ..settings import Settings", ["settings"]),
        ("transcripts.reader", "from .. import cli", ["cli"]),
        ("outputs.web", "from ..transcripts import layout", ["transcripts.layout"]),
        ("outputs.web", "def f():\n    from ..transcripts import layout", ["transcripts.layout"]),
        ("outputs.web", "from .. import __version__", []),
        ("ledger.store", "from ..transcripts.records import Record", ["transcripts.records"]),
        ("ledger.__init__", "from ..outputs import web", ["outputs.web"]),
        ("ledger.__init__", "from .model import Turn", []),
        ("ledger.store", "from .model import Turn", []),
        ("ledger.model", "from .labels import clean", ["ledger.labels"]),
        ("ledger.model", "import enum", []),
        ("settings", "from .ledger import model", ["ledger.model"]),
        ("settings", "from .ledger.labels import ProjectLabel", []),
        ("sources", "from .ledger.labels import ProjectLabel", []),
        ("sources", "from .ledger.store import Ledger", ["ledger.store"]),
        ("logs", "from .ledger.labels import ProjectLabel", ["ledger.labels"]),
        ("settings", "from .logs import Level", []),
        ("logs", "from . import cli", ["cli"]),
        ("cli", "from . import settings, __version__", []),
        ("cli", "import exporter.settings", ["exporter.settings"]),
        ("cli", "from exporter import settings", ["exporter"]),
        ("cli", "import exporters", []),
    ],
)
def test_the_rules_refuse_what_they_are_meant_to(
    module: str, source: str, refused: list[str]
) -> None:
    assert [name for name in imports(module, source) if not allowed(module, name)] == refused
