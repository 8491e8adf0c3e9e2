"""Programs are planned for any target on any machine; inputs and weights are packed as its kernels read them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime.graph import Array, Graph, Node, Value
from lite_runtime.native import build, machine, target
from lite_runtime.ops import _qpanels as q
from lite_runtime.ops.registry import Operand, Spec
from lite_runtime.planning.plan import Plan, plan
from lite_runtime.steps.reading import read
from lite_runtime.targets import AHEAD, TARGETS, Shape, Target

RNG = np.random.default_rng(17)


def _pack(source: Operand, layout: str, make: Callable[[Array], Array]) -> Array:
    assert source.value is not None
    return make(source.value)


def scalar(value: float, dtype: str) -> Array:
    return np.array(value, dtype)


def network(dtype: str) -> tuple[Graph, dict[str, Spec]]:
    """A quantised convolution of 16 channels, a depthwise one, and a float head."""
    nodes = (
        Node("QLinearConv", ("x", "s", "z", "w", "sw", "zw", "sy", "z"), ("a",), {"layout": "NHWC"}),
        Node("QLinearConv", ("a", "s", "z", "d", "sw", "zw", "sy", "z"), ("b",), {"layout": "NHWC", "group": 8}),
        Node("DequantizeLinear", ("b", "s", "z"), ("f",)),
        Node("Softmax", ("f",), ("y",), {"axis": -1}),
    )
    constants = {
        "w": RNG.integers(-128, 128, (8, 16, 3, 3)).astype(np.int8),
        "d": RNG.integers(-128, 128, (8, 1, 3, 3)).astype(np.int8),
        "s": scalar(0.1, "float32"),
        "sw": scalar(0.01, "float32"),
        "sy": scalar(0.5, "float32"),
        "z": scalar(3, dtype),
        "zw": scalar(0, "int8"),
    }
    shape = (1, 12, 12, 16)
    graph = Graph((Value("x", dtype, shape),), (Value("y", "float32"),), nodes, constants)
    return graph, {"x": Spec(dtype, shape)}


def planned(dtype: str, wanted: Target) -> Plan:
    graph, given = network(dtype)
    return plan(graph, given, pack=_pack, target=wanted)


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that must not be asked anything."""

    def asked(*_: object) -> None:
        raise AssertionError("planning asked this machine")

    monkeypatch.setattr(target, "host", asked)
    monkeypatch.setattr(machine, "features", asked)
    monkeypatch.setattr(build, "image", asked)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("wanted", (*TARGETS, *AHEAD), ids=lambda t: t.name)
def test_planning_is_the_same_work_for_every_target(nowhere: None, wanted: Target, dtype: str) -> None:
    made = planned(dtype, wanted)
    assert [record.name for record in made.records] == [record.name for record in planned(dtype, TARGETS[0]).records]
    assert all(record.name.startswith(("qgemm", "qdepthwise", "elementwise", "normalize")) for record in made.records)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("wanted", (*TARGETS, *AHEAD), ids=lambda t: t.name)
def test_inputs_are_flipped_to_what_the_target_multiplies(wanted: Target, dtype: str) -> None:
    """The zero point that the kernel sees is that of the flipped bytes."""
    graph, _ = network(dtype)
    x, w = (Operand(Spec(kind, shape), 0) for kind, shape in ((dtype, (1, 12, 12, 16)), ("int8", (8, 16, 3, 3))))
    terms = q.Terms(x, w, np.float32(1), 3, 1, np.ones(8), np.zeros(8), np.float32(1), 3, None, wanted.signed)
    raw = np.arange(256).astype(np.uint8)
    seen = (raw ^ np.uint8(terms.flip)).view(np.int8 if wanted.signed else np.uint8).astype(int)
    stored = raw.view(dtype).astype(int)
    assert (seen - terms.known_zero == stored - 3).all()
    assert (terms.flip == 0) == ((dtype == "int8") == wanted.signed)
    assert graph.nodes


@pytest.mark.parametrize("dilations", [(1, 2), (2, 1)])
@pytest.mark.parametrize("wanted", (*TARGETS, *AHEAD), ids=lambda t: t.name)
def test_convolutions_that_share_weights_sum_all_products_of_each(wanted: Target, dilations: tuple[int, int]) -> None:
    """Rows of a window lie next to one another in memory, or not: the weights are cut in another way."""
    weights = RNG.integers(-128, 128, (6, 5, 3, 3)).astype(np.int8)
    constants = {"w": weights, "s": scalar(0.1, "float32"), "z": scalar(0, "int8")}
    spec = Spec("int8", (1, 12, 12, 5))

    def dwords(of: tuple[int, ...]) -> list[int]:
        operands, attrs = ("x", "s", "z", "w", "s", "z", "s", "z"), {"layout": "NHWC"}
        nodes = tuple(Node("QLinearConv", operands, (f"y{d}",), {**attrs, "dilations": (d, d)}) for d in of)
        results = tuple(Value(f"y{d}", "int8") for d in of)
        graph = Graph((Value("x", "int8", spec.shape),), results, nodes, constants)
        made = plan(graph, {"x": spec}, pack=_pack, target=wanted)
        found = [read(r.name, made.program[r.begin : r.end]) for r in made.records if r.name == "qgemm.x8_gemm"]
        return [one.numbers["dwords"] for one in found]

    assert dwords(dilations) == [*dwords(dilations[:1]), *dwords(dilations[1:])]


# -- the order of a product's dwords -----------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=5, unique=True),
    st.integers(1, 70),
    st.integers(0, 2**32 - 1),
)
def test_dwords_in_fours_first_add_up_to_the_same(taps: list[int], depth: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = q.cut(taps, depth)
    fours = q.fours_first(plain)
    row = rng.integers(-128, 128, max(taps) + depth + 4)
    weights = np.append(rng.integers(-128, 128, len(taps) * depth), 0)

    def total(cut: q.Cut) -> int:
        return sum(
            int(row[place + i]) * int(weights[cut.source[g, i]]) for g, place in enumerate(cut.places) for i in range(4)
        )

    assert total(fours) == total(plain) == sum(
        int(row[tap + i]) * int(weights[t * depth + i]) for t, tap in enumerate(taps) for i in range(depth)
    )
    assert sorted(zip(fours.places, map(tuple, fours.source), strict=True)) == sorted(
        zip(plain.places, map(tuple, plain.source), strict=True)
    )
    together = np.array(fours.places[: 4 * fours.quick]).reshape(-1, 4)
    assert (together == together[:, :1] + [0, 4, 8, 12]).all()


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=5, unique=True),
    st.integers(1, 70),
    st.integers(1, 9),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
)
def test_dwords_that_come_first_have_sums_of_two_products_in_16_bits(
    taps: list[int], depth: int, columns: int, share: float, seed: int
) -> None:
    """And only they: others have a column with two neighbours of -128. The sums are the same."""
    rng = np.random.default_rng(seed)
    plain = q.cut(taps, depth)
    weights = rng.integers(-128, 128, (2, len(taps) * depth, columns)).astype(np.int8)
    weights[rng.random(weights.shape) < share] = -128
    ordered = q.narrow_first(plain, q.wide_dwords(weights, plain.source))
    assert sorted(zip(ordered.places, map(tuple, ordered.source), strict=True)) == sorted(
        zip(plain.places, map(tuple, plain.source), strict=True)
    )
    held = np.concatenate([weights, np.zeros((2, 1, columns), np.int8)], 1).astype(int)
    for g, source in enumerate(ordered.source):
        pairs = held[:, source].reshape(2, 2, 2, columns)  # (matrix, pair, of two, column)
        ends = [pairs * a for a in (-128, 127)]
        most, least = (of(ends[0], ends[1]).sum(2) for of in (np.maximum, np.minimum))
        assert (g < ordered.quick) == bool(most.max() < 2**15 and least.min() >= -(2**15))


@pytest.mark.parametrize("shifted", [False, True])
def test_panels_for_outer_products_hold_the_same_bytes(shifted: bool) -> None:
    """Of each dword, those of neighbouring columns are adjacent."""
    rng, shape = np.random.default_rng(3), Shape(4, 32, fused=True, outer=True)
    matrix, source = rng.integers(-128, 128, (10, 29)).astype(np.int8), q.cut((0,), 10).source
    outer = q.quantised_panels(matrix, source, shape, shifted)
    inner = q.quantised_panels(matrix, source, shape._replace(outer=False), shifted)
    wide, begin = [16, 16, 12] if shifted else [16, 16], 0
    for count in wide:
        size = 4 * len(source) * count
        one, other = (panels[begin : begin + size].reshape(len(source), -1) for panels in (outer, inner))
        assert (one.reshape(-1, 4, count) == other.reshape(-1, count, 4).swapaxes(1, 2)).all()
        begin += size
    assert begin == outer.size == inner.size


def test_shapes_are_read_as_they_are_written() -> None:
    for wanted in {t.shape_of(family) for t in (*TARGETS, *AHEAD) for family in ("qgemm", "qwide", "reduce", "gemm")}:
        assert Shape.read(str(wanted)) == wanted


@given(st.integers(1, 200))
def test_one_tap_keeps_its_order(depth: int) -> None:
    """The step that packs computed weights relies on it."""
    assert q.fours_first(q.cut((0,), depth)).places == q.cut((0,), depth).places
