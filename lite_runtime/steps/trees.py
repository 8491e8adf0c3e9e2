"""Decision forests on rows of float32 features."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, Out, Step, step

__all__ = ["Classes", "Scores", "TwoClasses", "Walk"]


@step("trees.f32_walk", "trees.f32_walk__leq")
class Walk(Step):
    """Sums the votes of all trees for each row; `__leq`: every node compares by <=, without sets or NaN handling."""

    x: In
    nodes: In  # int32: `kernels/trees.py`
    roots: In  # int32
    leaves: In  # int32: votes of leaf i are [leaves[i], leaves[i + 1])
    targets: In  # int32
    weights: In  # float64
    sets: In  # int32
    members: In  # float32
    base: In  # float64 [targets]
    sums: Out  # float64 [rows][targets]
    rows: int
    features: int
    trees: int
    target_count: int
    how: int  # aggregation: AVERAGE, SUM, MIN, MAX


@step("trees.f32_scores")
class Scores(Step):
    """Converts sums to scores."""

    sums: In  # float64
    out: Out
    rows: int
    targets: int
    transform: int


class _Labelled(Step):
    """Labels and scores."""

    sums: In  # float64
    labels: In  # int64
    label: Out
    out: Out  # scores
    rows: int


@step("trees.f32_classes")
class Classes(_Labelled):
    """The label of the highest score (the first of equal ones), and scores."""

    classes: int
    transform: int


@step("trees.f32_two_classes")
class TwoClasses(_Labelled):
    """Two classes of which only the second has a score."""

    transform: int
    margin: int  # 1: the label changes at 0, not at 1/2
    negative: int  # 1: the first score is minus the second, not 1 minus the second
