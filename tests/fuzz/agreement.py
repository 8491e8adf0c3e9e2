"""Do kernels and references agree on a file? On integers to the bit, wherever both are defined."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lite_runtime import MsedgeError
from lite_runtime.graph import Array, Graph

__all__ = ["EXACT", "Disagreement", "compare"]

EXACT = frozenset(
    "QLinearConv QLinearConvTranspose QLinearMatMul QLinearAdd QLinearSub QLinearMul QLinearAveragePool "
    "QLinearGlobalAveragePool QLinearReduceMean QLinearSoftmax QLinearResize LookupTable DynamicQuantizeLinear Unpack4 "
    "MatMulInteger ConvInteger QuantizeLinear DequantizeLinear MaxPool Add Sub Mul Relu Neg Abs Max Min Clip Pad "
    "Transpose Reshape Concat Slice Split Gather Squeeze Unsqueeze Expand Tile DepthToSpace SpaceToDepth ArgMax ArgMin "
    "TopK ReduceMax ReduceMin Flatten Identity Where Equal Less Greater And Or Not Xor".split()
)
"""Operators whose kernels give the reference's bits."""

Results = dict[str, Array]


class Disagreement(Exception):
    """Two ways to run a file came to different ends."""


def compare(graph: Graph, kernels: Callable[[], Results], references: Callable[[], Results]) -> Results:
    """Run both: the results. Raises the MsedgeError both raise; Disagreement where one refuses what the other computes,
    or results differ: in type, or in any bit where all operators are `EXACT` (one NaN is as good as another)."""
    ends: list[Results | MsedgeError] = []
    for run in (kernels, references):
        try:
            ends.append(run())
        except MsedgeError as error:
            ends.append(error)
    native, reference = ends
    if isinstance(native, MsedgeError) and isinstance(reference, MsedgeError):
        raise native
    ops = sorted({node.op for node in graph.nodes})
    if isinstance(native, MsedgeError) or isinstance(reference, MsedgeError):
        if any(limit in f"{native} {reference}" for limit in ("bytes", "a window of at most")):  # of memory or of time
            raise next(end for end in ends if isinstance(end, MsedgeError))
        if not set(ops) <= EXACT:
            return {}
        raise Disagreement(f"{ops}: kernels {_told(native)}, references {_told(reference)}")
    for name, got in native.items():
        _alike(name, got, reference[name], ops)
    return native


def _told(end: Results | MsedgeError) -> str:
    return f"refuse ({end})" if isinstance(end, MsedgeError) else "compute"


def _alike(name: str, got: Array, wanted: Array, ops: list[str]) -> None:
    if not isinstance(got, np.ndarray):  # a sequence or an optional
        return
    if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
        raise Disagreement(f"{name} of {ops}: {got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}")
    if not set(ops) <= EXACT or got.dtype == object:
        return
    same = (
        got.view(f"u{got.itemsize}") == wanted.view(f"u{got.itemsize}")
        if got.ndim
        else got.tobytes() == wanted.tobytes()
    )
    if got.dtype.kind == "f":
        same = same | (np.isnan(got) & np.isnan(wanted))
    if not np.all(same):
        at = tuple(int(i[0]) for i in np.nonzero(~np.atleast_1d(same)))
        both = f"{np.atleast_1d(got)[at]!r}, expected {np.atleast_1d(wanted)[at]!r}"
        raise Disagreement(f"{name} of {ops} at {at}: {both}")
