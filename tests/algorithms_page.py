"""docs/algorithms.md: every federated algorithm with its settings, defaults and paper, from the code.

    python -m tests.algorithms_page            prints the page
    python -m tests.algorithms_page --update   writes it
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import Field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from federated.algorithms import ALGORITHMS, Algorithm

PAGE = Path(__file__).parents[1] / "docs" / "algorithms.md"
COMMON = tuple(entry.name for entry in fields(Algorithm))
HEAD = """# Federated algorithms

<!-- Written by `python -m tests.algorithms_page --update`; do not edit. -->

`[algorithm] name` selects one; its settings are the other keys of the section. Settings that an algorithm does not list
are refused. Every algorithm also has

| key | default | |
|---|---|---|
{common}

`momentum` is that of the steps on a device, in training and adapting; it begins at zero in each round. *Schedule*: the
rates that [`[schedule]`](federated.md#local-steps-and-learning-rates) changes from round to round. *Devices*: the
option of `msedge convert` that a bundle needs besides `--trainable`; without it `msedge federate` refuses the
algorithm.

| name | | devices | personal state | equal weights | schedule |
|---|---|---|---|---|---|
{rows}
"""


def page() -> str:
    """The whole page as Markdown."""
    rows = (_row(kind) for kind in ALGORITHMS.values())
    head = HEAD.format(common="\n".join(map(_common, COMMON)), rows="\n".join(rows))
    return "\n".join([head, *(_section(module, kinds) for module, kinds in _modules())])


def _modules() -> Iterator[tuple[str, list[type[Algorithm]]]]:
    """The files with algorithms, in the order of the table."""
    found: dict[str, list[type[Algorithm]]] = {}
    for kind in ALGORITHMS.values():
        found.setdefault(kind.__module__, []).append(kind)
    yield from found.items()


def settings(kind: type[Algorithm]) -> list[Field[Any]]:
    """The fields that a configuration may set, without those that all algorithms have."""
    idle = kind().idle()
    return [entry for entry in fields(kind) if entry.name not in COMMON and entry.name not in idle]


def _common(name: str) -> str:
    (entry,) = (entry for entry in fields(Algorithm) if entry.name == name)
    text = inspect.getsource(Algorithm).partition(f"    {name}:")[2].partition('"""')[2].partition('"""')[0]
    return f"| `{name}` | `{_toml(entry.default)}` | {_plain(text)} |"


def _row(kind: type[Algorithm]) -> str:
    heading = _paragraphs(kind.__module__)[0]
    made = kind()
    rates = ", ".join(f"`{rate}`" for rate in (*kind.local_rates, *kind.server_rates))
    personal = kind.enrol is not Algorithm.enrol
    devices = "`--second-order`" if kind.second_order else "yes"
    answers = ("yes" if truth else "no" for truth in (personal, made.uniform))
    return f"| `{kind.name}` | [{_title(heading)}](#{_anchor(heading)}) | {devices} | {' | '.join(answers)} | {rates} |"


def _section(module: str, kinds: list[type[Algorithm]]) -> str:
    heading, *rest = _paragraphs(module)
    parts = [f"## {_title(heading)}", "", _plain(heading), "", *(f"{_plain(each)}\n" for each in rest)]
    for kind in kinds:
        parts += [f"`{kind.name}`: {_plain(inspect.getdoc(kind) or '')}", ""]
        parts += [f"Defaults: {', '.join(f'`{e.name} = {_toml(e.default)}`' for e in settings(kind))}"]
        if kind.second_order:
            parts += ["", f"Similar: {' or '.join(kind.instead)}."]
        if kind.excludes:
            parts += ["", f"Not with {', '.join(kind.excludes)}: {next(iter(kind.excludes.values()))}."]
        parts.append("")
    return "\n".join(parts)


def _paragraphs(module: str) -> list[str]:
    text = inspect.getdoc(import_module(module)) or ""
    return [" ".join(each.split()) for each in text.split("\n\n")]


def _title(heading: str) -> str:
    return heading.partition(":")[0] if ":" in heading else heading.rstrip(".")


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", _title(heading)).strip().lower().replace(" ", "-")


def _plain(text: str) -> str:
    """Text in which only backticks have a meaning in Markdown."""
    parts = " ".join(text.split()).split("`")
    parts[::2] = [re.sub(r"([*<>_|\[\]])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


if __name__ == "__main__":
    if "--update" in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(page())
