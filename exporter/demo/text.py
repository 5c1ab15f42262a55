"""Invented text: source code, program output and prose, cheap to make in any amount."""

from __future__ import annotations

import json
from bisect import bisect_left
from functools import cache
from itertools import accumulate
from random import Random

import orjson

_NOUNS = ("parcel", "route", "tariff", "berth", "crane", "vessel", "docket", "ramp", "ferry")
_VERBS = ("load", "merge", "check", "price", "pack", "hoist", "clear", "weigh", "assign", "sort")
_CODE = (
    "def {v}_{n}({m}: {M}, *, limit: int = {i}) -> list[{M}]:",
    '    rows = await db.fetch("select * from {n} where {m}_id = $1", {m}.id)  # {v} once',
    "export const {v}{M} = ({n}: {M}[]) => {n}.filter((it) => it.{m} > {i}).map(String);",
    '\tif err := s.{n}.{v}(ctx, "{m}\\n"); err != nil {{ return fmt.Errorf("{v} {n}: %w", err) }}',
    "src/{n}/{m}.ts:{i}:{j} - error TS2345: Argument of type '{M}' is not assignable.",
    "\x1b[32mPASS\x1b[0m tests/test_{n}.py::test_{v}_{m}[{i}] ({j} ms)",
    "C:\\Users\\ana\\{n}\\{m}_{i}.log  │ {j} kB │ geändert — 完了 ✅",
    '{{"id":"{i}","type":"gemini","tokens":{{"input":{i},"output":{j},"total":{i}}},"model":"{n}"}}',
    "  - {{ name: {n}, image: images.test/{m}:{j}, args: [--{v}, '{i}'] }}",
    "+++ b/src/{n}/{v}.py\t@@ -{i},{j} +{i},{j} @@ class {M}({m}.Base):",
    "",
)
_PROSE = (
    "The {n} handler asks the {m} service twice; the second answer is “stale” — I keep the first.",
    "`{v}_{n}` fails when the {m} list is empty, so I added a guard and a test for it.",
    "Next I will {v} the {n} table and compare it with the {m} export from line {i}.",
    "Größe und Anzahl stimmen: {i} × {j} entries in `src/{n}/{m}.py` 🎉.",
    "There is no caller of `{v}{M}` outside of `{n}`, removing it is safe.",
)


class Text:
    """Invented lines, escaped for JSON once: a text is a slice of them and costs one copy."""

    def __init__(self, templates: tuple[str, ...], size: int, end: str) -> None:
        rng, lines = Random(size), list[bytes]()
        while size > 0:
            line = json.dumps(fill(rng, rng.choice(templates)) + end, ensure_ascii=False)
            lines.append(line[1:-1].encode())
            size -= len(lines[-1])
        self._bytes, self._ends = b"".join(lines), list(accumulate(map(len, lines)))

    def cut(self, rng: Random, size: float) -> bytes:
        """Some whole lines, about `size` bytes of them, ready to stand inside a JSON string."""
        room = max(1.0, len(self._bytes) - size - 1_000)
        begin = self._ends[bisect_left(self._ends, rng.random() * room)]
        return self._bytes[begin : self._ends[bisect_left(self._ends, begin + size)]]

    def quote(self, rng: Random, size: float) -> orjson.Fragment:
        """The same as a JSON string."""
        return quoted(self.cut(rng, size))


@cache
def code() -> Text:
    """What tools put out; made once a process and the same in every process."""
    return Text(_CODE, 600_000, "\n")


@cache
def prose() -> Text:
    """What models say; made once a process and the same in every process."""
    return Text(_PROSE, 60_000, " ")


def fill(rng: Random, template: str) -> str:
    """The template with words and numbers; one draw, since every text passes through here."""
    return template.format_map(_SCENES[int(rng.random() * len(_SCENES))])


def quoted(text: bytes) -> orjson.Fragment:
    """A JSON string of text that is escaped already."""
    return orjson.Fragment(b'"%b"' % text)


def _scene(number: int) -> dict[str, object]:
    noun, other = (_NOUNS[number // step % len(_NOUNS)] for step in (1, 13))
    words = {"n": noun, "m": other, "M": other.title(), "v": _VERBS[number % len(_VERBS)]}
    return {**words, "i": number * 7 % 4_999, "j": number % 89}


_SCENES = [_scene(number) for number in range(1, 1_000)]
