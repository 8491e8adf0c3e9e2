"""Comparison of two runs of one model, element by element, relative to the range of the expected values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edge.measuring.describe import inferred
from edge.peers.oracle import Oracle, as_array
from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Node, Value, dtype_name

if TYPE_CHECKING:
    import onnx

__all__ = ["Difference", "Divergence", "compare", "compare_all", "first_divergence", "worst"]

ROUNDING = 2.0**-21
"""Differences up to this one, four units in the last place of a float32 near 1, are ignored.

ONNX Runtime's Sigmoid has an error of 6e-8 around 1e-7 (and gives 0 for -20, not 2e-9). If a model recognises nothing
in its input and all its scores are that small, this error alone is one hundredth of their range.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of the value `name` from the expected one. `relative`: the largest difference divided by the
    expected range.

    `at` is the index of the worst element; `why` describes differences that are not numeric (shapes, dtypes, an
    unexpected NaN).
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    largest: float
    relative: float
    at: tuple[int, ...] = ()
    why: str = ""
    unequal: float = 0.0
    """The share of the elements that differ, where they are integers, Booleans or text of the same shape."""

    @property
    def significant(self) -> float:
        """`relative`, but 0 for rounding errors: see `ROUNDING`."""
        return 0.0 if self.largest <= ROUNDING else self.relative

    def within(self, relative: float, absolute: float = ROUNDING) -> bool:
        """Whether the largest difference is at most `absolute`, or at most this share of the expected range."""
        return self.largest <= absolute or self.relative <= relative


MAY_STEP = 1e-3
"""The share of a quantised tensor's elements that may differ by more than the allowed steps."""


_FRACTION_BITS = {"float16": 10, "bfloat16": 7}


def _last_place(x: Array, bits: int) -> Array:
    """The unit in the last place of finite numbers with so many bits of fraction."""
    return np.exp2(np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1.0 - bits)


def compare(name: str, got: Array, expected: Array, steps: int = 0) -> Difference:
    """Compare an output: reals by their distance; integers, booleans and strings must be equal (`relative` is 0 or
    infinite).

    `steps`: the largest allowed difference of 8- and 16-bit integers, which two methods of rounding may cause; a share
    `MAY_STEP` of the elements may differ by more. Of float16 and bfloat16 it is in units in the last place.
    """
    got, expected = np.asarray(got), np.asarray(expected)
    kind, shape = dtype_name(expected.dtype), expected.shape

    def broken(why: str, at: tuple[int, ...] = (), unequal: float = 0.0) -> Difference:
        return Difference(name, kind, shape, np.inf, np.inf, at, why, unequal)

    if got.shape != shape:
        return broken(f"expected shape {shape}, got {got.shape}")
    if dtype_name(got.dtype) != kind:
        return broken(f"expected {kind}, got {dtype_name(got.dtype)}")
    if expected.size == 0:
        return Difference(name, kind, shape, 0.0, 0.0)
    if steps and kind in ("int8", "uint8", "int16", "uint16"):
        far = np.abs(got.astype(np.int64) - expected)
        if np.mean(far > steps) <= MAY_STEP:
            return Difference(name, kind, shape, float(far.max()), 0.0, _index(np.argwhere(far == far.max())[0]))
    if kind == "string" or expected.dtype.kind in "biu":
        unequal = np.argwhere(got != expected)
        if len(unequal) == 0:
            return Difference(name, kind, shape, 0.0, 0.0)
        share = len(unequal) / expected.size
        return broken(f"{len(unequal)} of {expected.size} elements differ", _index(unequal[0]), share)
    wide: Any = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    finite = np.isfinite(b)
    odd = np.argwhere(np.where(finite, ~np.isfinite(a), ~((a == b) | (np.isnan(a) & np.isnan(b)))))
    if len(odd):
        at = _index(odd[0])
        return broken(f"expected {b[at]}, got {a[at]}", at)
    distance = np.zeros(shape)
    distance[finite] = np.abs(a[finite] - b[finite])
    if steps and kind in _FRACTION_BITS:
        distance[distance <= steps * _last_place(b, _FRACTION_BITS[kind])] = 0.0
    at = _index(np.unravel_index(int(distance.argmax()), shape))
    largest = float(distance[at])
    return Difference(name, kind, shape, largest, largest / _range(b[finite]), at)


def compare_all(got: Mapping[str, Array], expected: Mapping[str, Any], steps: int = 0) -> list[Difference]:
    """One row per output. Outputs are matched by name; `steps` as in `compare`."""
    lacking = [name for name in expected if name not in got]
    if lacking:
        raise InputError(f"no output {lacking[0]!r} in the bundle, which has {', '.join(got)}: is this its source?")
    return [compare(name, got[name], as_array(value), steps) for name, value in expected.items()]


def worst(runs: Sequence[Sequence[Difference]]) -> list[Difference]:
    """The worst row of each output over several runs."""
    return [max(rows, key=lambda d: (d.significant, d.relative)) for rows in zip(*runs, strict=True)]


@dataclass(frozen=True, slots=True)
class Divergence:
    """The place where two graphs diverge: the first shared value that differs, as do all values computed from it."""

    difference: Difference
    source_op: str
    source_node: str
    lite_node: str
    agreeing: int
    """The number of shared values that agree."""


def first_divergence(
    source: onnx.ModelProto,
    graph: Graph,
    inputs: Mapping[str, Array],
    tolerance: float,
    *,
    threads: int,
    backend: str,
    given: Mapping[str, Array] | None = None,
) -> Divergence | None:
    """Run both graphs with their shared values as additional outputs; None if no shared value differs. given: the
    source's inputs, if they are not the same.

    A value is shared if the bundle has it under its name, or under that name with the converter's mark for a rewrite
    (`name~7`). The converter may have reused a marked name for another value of the same shape. Values computed from it
    then still agree, which distinguishes this case from a real difference.
    """
    import lite_runtime
    from lite_runtime import bundle

    made_by = {name: node for node in source.graph.node for name in node.output if name}
    shared = {
        n: original for n in _values(graph) if (original := n if n in made_by else n.partition("~")[0]) in made_by
    }
    expected = Oracle(source, threads=threads, taps=list(dict.fromkeys(shared.values()))).run(given or inputs)
    shared = {n: original for n, original in shared.items() if isinstance(expected[original], np.ndarray)}
    types = inferred(graph, {name: x.shape for name, x in inputs.items()})  # float32 where the source has float16
    outputs = tuple(
        Value(n, types[n][0] if n in types else dtype_name(expected[original].dtype)) for n, original in shared.items()
    )
    tapped = bundle.write(None, {"predict": graph.replace(outputs=outputs)})
    got = lite_runtime.load(tapped, threads=threads, backend=backend).run(inputs)
    found = {n: d for n, original in shared.items() if (d := _in_some_layout(original, got[n], expected[original]))}
    agreeing = {n for n, d in found.items() if d.within(tolerance)}
    telling = {n for n in agreeing if found[n].dtype.startswith("float")}  # a wrong tensor still has the right shape
    for node in _tainted(graph, found.keys() - agreeing, telling):
        name = next(n for n in node.outputs if n in found and n not in agreeing)
        origin = made_by[shared[name]]
        return Divergence(found[name], origin.op_type, origin.name, node.where, len(agreeing))
    return None


def _values(graph: Graph) -> list[str]:
    return [name for node in graph.nodes for name in node.outputs if name]


def _tainted(graph: Graph, differing: Set[str], agreeing: Set[str]) -> list[Node]:
    """The nodes whose result differs and from whose result no agreeing value is computed, in order."""
    leads_to_agreement: set[str] = set()
    wrong: list[Node] = []
    for node in reversed(graph.nodes):
        if (leads_to_agreement | agreeing) & set(node.outputs):
            leads_to_agreement.update((*node.inputs, *node.captures))
        if any(n in differing and n not in leads_to_agreement for n in node.outputs):
            wrong.append(node)
    return wrong[::-1]


def _in_some_layout(name: str, got: Array, expected: Array) -> Difference | None:
    """The difference in the layout that is closer to the expected value; None if the shape fits neither layout."""
    if got.dtype == np.float32 and dtype_name(expected.dtype) in _FRACTION_BITS:
        expected = expected.astype(np.float32)
    layouts = [got, np.moveaxis(got, -1, 1)] if got.ndim > 2 else [got]
    fitting = [compare(name, array, expected) for array in layouts if array.shape == expected.shape]
    return min(fitting, key=lambda d: d.relative, default=None)


def _index(at: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in at)


def _range(values: Array) -> float:
    """The range of the expected values; their magnitude if all are equal, and 1 if all are zero."""
    if values.size == 0:
        return 1.0
    if values.dtype.kind == "c":
        return float(np.abs(values).max()) or 1.0
    return float(values.max() - values.min()) or float(np.abs(values).max()) or 1.0
