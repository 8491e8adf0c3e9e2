"""docs/litert-integers.md: every operator and type of which LiteRT has integer kernels, compared on random models.

    python -m tests.litert_page            prints the page
    python -m tests.litert_page --update   writes it
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.converter.frontends.tflite.integers import CASES, Case
from tests.converter.frontends.tflite.integers.comparing import Apart, compared

PAGE = Path(__file__).parents[1] / "docs" / "litert-integers.md"
SEEDS = 32
HEAD = """# LiteRT's integers

<!-- Written by `python -m tests.litert_page --update`; do not edit. -->

Every operator of TensorFlow Lite that has kernels for integers, or for real numbers by integer weights, in every type
that LiteRT runs: {models} random models of one operator each, {seeds} of each row, with odd shapes, far zero points,
scales of any size and numbers that saturate; models with a state run twice. `convert` with its default
`--integers litert`; LiteRT is ai-edge-litert {version}: as it runs by default, with XNNPACK for what that takes, and
with its own kernels alone. [0026](decisions/0026-litert-integers.md) says how these integers are computed, and where
LiteRT's are not reproduced.

*equal*: no bit of any result differs. Otherwise the share of integers that differ, and the largest difference in steps;
of real results (*real*), which are added up in another order, the largest difference as a share of the largest number.
States of recurrent cells by 8-bit weights are rounded to 8 bits: where one is within 1e-7 of the middle between two
steps it takes the other step, which moves later results by up to 1e-2. *Refused*: LiteRT's own kernels do not run it.
*By reference*: ours has no native kernel.

| operator | types | LiteRT | its own kernels | |
|---|---|---|---|---|
{rows}
"""


class Row(NamedTuple):
    """What one case showed, in words."""

    op: str
    types: str
    default: str
    own: str
    note: str


def outcome(total: Apart, real: bool) -> str:
    """A cell of the table."""
    if real:
        return f"real, {total.most:.0e}".replace("e-0", "e-").replace("e+00", "") if total.most else "equal"
    if not total.differing:
        return "equal"
    steps = f"{total.most:.0f} step{'s' * (total.most > 1)}"
    return f"{100 * total.differing / total.count:.2g} %, {steps}"


def row(one: Case) -> Row:
    """The case on SEEDS models."""
    found = [compared(one, seed) for seed in range(SEEDS)]
    real = any(each.real for each in found)
    default, own = Apart(), Apart()
    for each in found:
        default += each.default
        own += each.own or Apart()
    without = sorted({name for each in found for name in each.by_reference} - {"Unpack4"})
    cell = outcome(own, real) if own.count else "refused"
    return Row(one.op, one.types, outcome(default, real), cell, f"{', '.join(without)} by reference" if without else "")


def rows() -> Iterator[str]:
    """Lines of the table: types of an operator with the same outcome share one."""
    ordered = sorted(CASES, key=lambda one: one.op)
    for op, group in groupby(ordered, key=lambda one: one.op):
        alike: dict[tuple[str, ...], list[str]] = {}
        for one in group:
            made = row(one)
            alike.setdefault(made[2:], []).append(made.types)
            print(*made, sep=" | ", file=sys.stderr)
        for cells, types in alike.items():
            yield f"| {op} | {'; '.join(types)} | {' | '.join(cells)} |"


def page(lines: Iterable[str]) -> str:
    """The whole page as Markdown, with these lines of the table."""
    models = f"{len(CASES) * SEEDS:,}"
    return HEAD.format(models=models, seeds=SEEDS, version=version("ai-edge-litert"), rows="\n".join(lines))


if __name__ == "__main__":
    text = page(rows())
    if "--update" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)
