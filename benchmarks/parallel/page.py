"""The results of the comparison as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.parallel.contest import CONTENDERS

__all__ = ["best_expert", "page"]

Row = Mapping[str, Mapping[str, Any]]
_OWN = ("searched", "ours")
_EXPERTS = tuple(name for name in CONTENDERS if name not in _OWN)


def page(found: Mapping[str, Row]) -> str:
    """`found`: entries by "model:topology" and by contender. One table per topology, with the contenders that it has,
    then the predictions for our plans."""
    places = dict.fromkeys(key.partition(":")[2] for key in found)
    parts = [_place(place, {key.partition(":")[0]: row for key, row in found.items() if key.endswith(f":{place}")})
             for place in places]  # fmt: skip
    return "\n\n".join([*parts, _foretold(found)])


def best_expert(row: Row) -> Mapping[str, Any] | None:
    """The cheapest of the expert plans that fit; None if none does."""
    fitting = [row[name] for name in _EXPERTS if name in row and row[name]["fits"]]
    return min(fitting, key=lambda entry: float(entry["step"]), default=None)


def _place(place: str, rows: Mapping[str, Row]) -> str:
    shown = [name for name in (*_EXPERTS, *_OWN) if any(name in row for row in rows.values())]
    heads = ("model", *shown, "best expert / ours")
    lines = [f"### {place}", "", _line(heads), _line(["---"] + ["---:"] * (len(heads) - 1))]
    for model, row in rows.items():
        best = best_expert(row)
        cells = [_cell(row.get(name), best is not None and row.get(name) is best) for name in shown]
        lines.append(_line([model, *cells, _ratio(row)]))
    return "\n".join(lines)


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _ratio(row: Row) -> str:
    ours, best = row.get("ours"), best_expert(row)
    if not ours or not ours["fits"]:
        return "–"
    return f"{best['step'] / ours['step']:.3f}" if best else "only ours fits"


def _cell(entry: Mapping[str, Any] | None, best: bool) -> str:
    """Milliseconds and GiB, in brackets if it does not fit."""
    if entry is None:
        return ""
    if not entry["step"]:
        return "does not fit" if "fit" in entry["error"] else "–"
    text = f"{entry['step'] * 1e3:.2f} ms, {entry['peak'] / 2**30:.1f} GiB"
    text += f", {entry['recompute']:.0%} again" if entry["recompute"] else ""
    text = f"**{text}**" if best or entry["contender"] == "ours" else text
    return text if entry["fits"] else f"({text})"


def _foretold(found: Mapping[str, Row]) -> str:
    pairs = (f"{what}{how}" for what in ("step", "peak", "moved") for how in (" predicted", ""))
    heads = ("our plan", "whose", "mesh", *pairs, "search", "compiling")
    lines = ["### Predictions of our plans", "", _line(heads), _line(["---"] * 3 + ["---:"] * (len(heads) - 3))]
    for key, row in found.items():
        one = row.get("ours")
        if one and one["step"]:
            search = sum(entry["search_seconds"] for name, entry in row.items() if name != "ours")
            steps = (f"{one[name] * 1e3:.2f} ms" for name in ("said_step", "step"))
            peaks = (f"{one[name] / 2**30:.2f} GiB" for name in ("said_peak", "peak"))
            moved = (f"{one[name] / 2**20:.1f} MiB" for name in ("said_moved", "moved"))
            mesh = "×".join(map(str, one["mesh"])) + (", gathered twice" if one["regather"] else "")
            times = f"{search:.0f} s", f"{one['compile_seconds']:.0f} s"
            lines.append(_line([key, one["picked"], mesh, *steps, *peaks, *moved, *times]))
    return "\n".join(lines)
