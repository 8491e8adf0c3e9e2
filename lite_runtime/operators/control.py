"""Branches and loops: operators that execute subgraphs."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import MANY, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="control")

RECORDS: tuple[Operator, ...] = (
    _op("If", since=1, outputs=(1, MANY), attrs="else_branch:G! then_branch:G!", traits=("wide", "control")),
    _op(
        "Loop",
        since=1,
        inputs=(2, MANY),
        outputs=(1, MANY),
        attrs="body:G!",
        traits=("wide", "control", "optional_first"),
        settings=(0, 1),
    ),
    _op(
        "Scan",
        since=8,
        inputs=(1, MANY),
        outputs=(1, MANY),
        attrs=(
            "body:G! num_scan_inputs:i! scan_input_axes:I scan_input_directions:I scan_output_axes:I "
            "scan_output_directions:I"
        ),
        traits=("wide", "control", "optional_first"),
    ),
    _op(
        "SequenceMap",
        since=17,
        inputs=(1, MANY),
        outputs=(1, MANY),
        attrs="body:G!",
        traits=("control", "optional_first"),
    ),
)
