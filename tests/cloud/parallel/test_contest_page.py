"""The table of plans shows which is best, and which do not fit."""

from __future__ import annotations

from typing import Any

from benchmarks.parallel.contest import Entry
from benchmarks.parallel.page import best_expert, page


def entry(name: str, step: float, fits: bool = True, **more: Any) -> dict[str, Any]:
    return Entry(name, (8,), step=step, peak=1 << 30, fits=fits, **more).to_dict()


def test_only_experts_that_fit_are_compared_with() -> None:
    row = {"dp": entry("dp", 1e-3, fits=False), "fsdp": entry("fsdp", 3e-3), "searched": entry("searched", 2e-3),
           "ours": entry("ours", 2e-3, picked="searched"), "ep": Entry("ep", error="no plan").to_dict()}  # fmt: skip
    best = best_expert(row)
    assert best is not None
    assert best["contender"] == "fsdp"
    text = page({"mlp:h100x8": row})
    assert "| mlp | (1.00 ms, 1.0 GiB) | **3.00 ms, 1.0 GiB** |" in text
    assert "| 1.500 |" in text


def test_rows_in_which_no_expert_plan_fits() -> None:
    row = {"dp": Entry("dp", error="expected a plan within 1 GiB; the least to fit is 2").to_dict(),
           "ours": entry("ours", 2e-3, recompute=0.5)}  # fmt: skip
    assert best_expert(row) is None
    text = page({"mlp:4-small": row})
    assert "does not fit" in text
    assert "50% again" in text
    assert "only ours fits" in text
