"""The comparison with shardings written by hand as Markdown: the contest, and predicted against compiled peaks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["page"]

Row = Mapping[str, Any]
EQUAL, NEAR = 0.005, 0.10
"""Costs that differ by no more than this share are equal; peaks are near."""


def page(found: Mapping[str, Row]) -> str:
    """`found`: rows by "model:topology", as `benchmarks.parallel.hand_contest` saves them."""
    done = {case: row for case, row in found.items() if row.get("hand") and row.get("ours")}
    return "\n\n".join([_contest(done), _peaks(done)])


def _best(row: Row) -> tuple[str, Row] | None:
    """The cheapest expert that fits."""
    fitting = [(label, one) for label, one in row["hand"].items() if one.get("fits")]
    return min(fitting, key=lambda pair: float(pair[1]["step"]), default=None)


def _ratio(row: Row) -> float | None:
    """The best expert's cost over ours; infinite if no expert fits, 0 if ours does not, None if neither does."""
    best, plans = _best(row), row["ours"]["plans"]
    ours = plans[0] if plans and plans[0]["fits"] else None
    if ours is None:
        return None if best is None else 0.0
    return float(best[1]["step"] / ours["step"]) if best else float("inf")


def _contest(found: Mapping[str, Row]) -> str:
    heads = ("step", "topology", "best expert", "ours", "whose", "expert / ours", "predicted", "moved predicted",
             "moved", "compiled")  # fmt: skip
    lines = [_line(heads), _line(["---", "---", *["---:"] * 2, "---", *["---:"] * 5])]
    for case, row in found.items():
        ratio, best, plans = _ratio(row), _best(row), row["ours"]["plans"]
        cells = [*case.split(":"), f"{best[0]}: {_cost(best[1])}" if best else "none fits"]
        if plans:
            one = plans[0]
            said = _cost({"step": one["said_step"], "peak": one["said_peak"]})
            text = "only ours fits" if ratio == float("inf") else f"{ratio:.3f}" if ratio is not None else "–"
            moved = [f"{one[key] / 2**20:.1f} MiB" for key in ("said_moved", "moved")]
            cells += [_cost(one), _whose(one), text, said, *moved, row["ours"]["said"].partition(" best")[0][9:]]
        else:
            cells += ["–"] * 7
        lines.append(_line(cells))
    return "\n".join([*lines, "", _summary([_ratio(row) for row in found.values()])])


def _summary(ratios: list[float | None]) -> str:
    known = [ratio for ratio in ratios if ratio is not None]
    ahead, behind = sum(ratio > 1 + EQUAL for ratio in known), sum(ratio < 1 - EQUAL for ratio in known)
    higher = sum(ratio > 1 for ratio in known)
    return (f"{len(known)} pairs: ours is ahead in {higher}, by more than {EQUAL:.1%} in {ahead};"
            f" behind by more than {EQUAL:.1%} in {behind}.")  # fmt: skip


def _peaks(found: Mapping[str, Row]) -> str:
    programs = [*_programs(found)]
    near = sum(abs(gap) <= NEAR for *_, gap in programs)
    over = [(case, one) for case, one, _ in programs if not one["fits"]]
    moved = sum(one["said_moved"] == one["moved"] for _, one, _ in programs)
    heads = ("step", "topology", "plan", "mesh", "peak predicted", "peak", "difference")
    lines = [_line(heads), _line(["---"] * 4 + ["---:"] * 3)]
    for case, one, gap in sorted(programs, key=lambda each: -abs(each[2])):
        if abs(gap) > NEAR:
            peaks = (f"{one[key] / 2**30:.2f} GiB" for key in ("said_peak", "peak"))
            mesh = "×".join(map(str, one["mesh"]))
            lines.append(_line([*case.split(":"), _whose(one), mesh, *peaks, f"{gap:+.0%}"]))
    share = near / len(programs) if programs else 1.0
    return "\n".join([
        f"Programs of our plans that were compiled: {len(programs)}. Peak within {NEAR:.0%}: {near} ({share:.1%}). Said"
        f" to fit and does not: {len(over)}. Bytes moved exactly as predicted: {moved}. Peaks further off:", "", *lines,
    ])  # fmt: skip


def _programs(found: Mapping[str, Row]) -> Iterator[tuple[str, Row, float]]:
    for case, row in found.items():
        for one in row["ours"]["plans"]:
            yield case, one, one["said_peak"] / one["peak"] - 1


def _whose(one: Row) -> str:
    return str(one["name"]) + (f", {one['parts']} parts" if one["parts"] > 1 else "")


def _cost(one: Row) -> str:
    return f"{one['step'] * 1e3:.2f} ms, {one['peak'] / 2**30:.2f} GiB"


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"
