"""What is compared: attacks with their settings, the same for both programs, as rows of data.

Names of settings are those of this project; `_art.py` has the other program's. `rows`: how many examples; `seeds`: how
many turns, each with another seed, where random numbers matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CASES", "INTEGERS", "Case"]


@dataclass(frozen=True)
class Case:
    """One row of the table. `minimal`: the figure is the median distance, otherwise the rate of success."""

    name: str
    attack: str
    settings: Mapping[str, Any]
    rows: int
    minimal: bool = False


_EPSILON = {"mnist": {"Linf": 0.1, "L2": 1.5}, "har": {"Linf": 0.06, "L2": 1.5}}


def _cases(task: str) -> tuple[Case, ...]:
    def within(name: str, attack: str, norm: str, rows: int, **more: Any) -> Case:
        return Case(name, attack, {"norm": norm, "epsilon": _EPSILON[task][norm], **more}, rows)

    return (
        within("FGSM Linf", "fgsm", "Linf", 1000),
        within("FGSM L2", "fgsm", "L2", 1000),
        within("PGD Linf", "pgd", "Linf", 256, steps=40),
        within("PGD L2", "pgd", "L2", 256, steps=40),
        within("PGD Linf, 5 restarts", "pgd", "Linf", 256, steps=20, restarts=5),
        within("AutoPGD Linf, ce", "auto_pgd", "Linf", 256, steps=100, loss="ce"),
        within("AutoPGD Linf, dlr", "auto_pgd", "Linf", 256, steps=100, loss="dlr"),
        within("AutoPGD L2, ce", "auto_pgd", "L2", 256, steps=100, loss="ce"),
        within("AutoPGD L2, dlr", "auto_pgd", "L2", 256, steps=100, loss="dlr"),
        within("Square Linf", "square", "Linf", 128, steps=1000),
        *([within("Square L2", "square", "L2", 128, steps=1000)] if task == "mnist" else []),  # ART's needs squares
        Case("DeepFool", "deepfool", {"steps": 50, "overshoot": 0.02, "classes": 9}, 256, True),
        Case("Carlini-Wagner", "carlini_wagner",
             {"steps": 50, "searches": 5, "rate": 0.05, "weight": 1.0, "confidence": 0.0}, 64, True),
        Case("HopSkipJump L2", "hop_skip_jump", {"norm": "L2", "iterations": 8, "directions": 100}, 12, True),
        Case("HopSkipJump Linf", "hop_skip_jump", {"norm": "Linf", "iterations": 8, "directions": 100}, 12, True),
    )  # fmt: skip


CASES: Mapping[str, tuple[Case, ...]] = {task: _cases(task) for task in _EPSILON}
"""Task -> its rows."""

INTEGERS: tuple[str, ...] = ("AutoPGD Linf, ce", "AutoPGD L2, ce", "Carlini-Wagner", "Square Linf", "HopSkipJump L2",
                             "HopSkipJump Linf")  # fmt: skip
"""Rows that are repeated for the integer bundle: gradients are the float twin's, predictions its own."""
