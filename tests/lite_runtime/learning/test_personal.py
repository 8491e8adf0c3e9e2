"""Rows of many owners in one run: each equals a run of its owner's bundle, or the reason why not is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lite_runtime
from lite_runtime import bundle
from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Node, StateUse, Value, dtype_name
from lite_runtime.learning.personal import SLOTS, PersonalModel, SeparateModel, Ungrouped
from tests.lite_runtime.ops.targets import on_other_targets, run_on

OWNERS = 3


class Net:
    """A bundle in the making: x [n, *shape] -> y, and the state it reads."""

    def __init__(self, shape: tuple[int, ...], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.shape, self.nodes = shape, list[Node]()
        self.state, self.constants = dict[str, Array](), dict[str, Array]()

    def own(self, *shape: int) -> str:
        """A state of normal numbers around one, so that products neither vanish nor explode."""
        name = f"w{len(self.state)}"
        about = 1 + 0.3 * self.rng.standard_normal(shape)
        self.state[name] = np.asarray(about / max(shape[:1] or (1,)) ** 0.5, np.float32)
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) / max(shape[:1] or (1,)) ** 0.5).astype(np.float32))

    def op(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(op, inputs, (name,), attrs, name))
        return name

    def bundle(self, y: str, outer: Sequence[int | str | None]) -> bytes:
        ins = (Value("x", "float32", ("n", *self.shape)),)
        ports = tuple(Value(f"in/{name}", dtype_name(a.dtype), a.shape) for name, a in self.state.items())
        rename = {name: f"in/{name}" for name in self.state}
        nodes = tuple(
            Node(n.op, tuple(rename.get(i, i) for i in n.inputs), n.outputs, n.attrs, n.name) for n in self.nodes
        )
        graph = Graph((*ins, *ports), (Value(y, "float32", ("n", *outer)),), nodes, self.constants)
        use = StateUse({port: name for name, port in rename.items()}, {})
        return bundle.write(None, {"predict": graph}, state=self.state, uses={"predict": use} if self.state else {})


def owners(held: bundle.Bundle, names: Sequence[str], count: int = OWNERS, seed: int = 1) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [
        {n: np.asarray(held.state[n] + 0.2 * rng.standard_normal(held.state[n].shape), np.float32) for n in names}
        for _ in range(count)
    ]


def check(data: bytes, names: Sequence[str], who: Sequence[int] = (2, 0, 0, 3, 1), seed: int = 0) -> PersonalModel:
    """Row i of owner who[i] (0: no owner) equals the result of that owner's bundle, for any backend and workers."""
    held = bundle.read(data)
    (value,) = (v for v in held.signatures["predict"].inputs if v.name == "x")
    x = np.random.default_rng(seed).standard_normal((len(who), *(value.shape or ())[1:])).astype(np.float32)
    states = owners(held, names)
    own = [lite_runtime.load(data), *(lite_runtime.load(bundle.with_state(data, state)) for state in states)]
    rows = [next(iter(own[w].run({"x": x[i : i + 1]}).values())) for i, w in enumerate(who)]
    want, got = np.concatenate(rows), list[Array]()
    for backend, threads in (("guard", 1), ("guard", 3), ("auto", 1)):
        model = lite_runtime.load(data, backend=backend, threads=threads)
        table = PersonalModel(model, names, {"x": x.shape}, slots=OWNERS + 1)
        for i, state in enumerate(states):
            table.write(i + 1, table.prepare(state))
        (y,) = table.run({"x": x, SLOTS: np.array(who)}).values()
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))
        got.append(y)
        separate = SeparateModel(model, names)
        (one,) = separate.run({"x": x[:1]}, {**held.state, **states[who[0] - 1]}).values()
        np.testing.assert_allclose(one, want[:1], rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))
    assert len({y.tobytes() for y in got}) == 1
    return table


# -- random networks --------------------------------------------------------------------------------------------------


def grow(net: Net, draw: Any, y: str, width: int, seq: int) -> tuple[str, int]:
    """One more layer behind y [n, seq, width]; its result and width."""
    layer = draw(st.sampled_from(["dense", "bias", "gemm", "scale", "norm", "residual", "made", "softmax", "relu"]))
    owned = draw(st.booleans())
    if layer in ("dense", "gemm", "made"):
        wide = draw(st.integers(1, 20))
        make = net.own if owned or layer == "made" else net.weight
        if layer == "gemm":
            flat = net.op("Reshape", y, net.constant(np.array([-1, width])))
            flat = net.op("Gemm", flat, make(wide, width), net.own(wide), transB=1)
            return net.op("Reshape", flat, net.constant(np.array([-1, seq, wide]))), wide
        if layer == "made":
            matrix = net.op("Mul", net.op("Transpose", make(wide, width), perm=(1, 0)), net.own())
            return net.op("MatMul", y, matrix), wide
        activation = draw(st.sampled_from(["", "Relu", "Silu", "Clip", "LeakyRelu"]))
        attrs = {"activation": activation, "activation_min": -1.0, "activation_max": 2.0} if activation else {}
        if activation != "Clip":
            attrs = {key: value for key, value in attrs.items() if key == "activation"}
        bias = draw(st.sampled_from([net.own, net.weight, None]))
        inputs = [y, make(width, wide), *([bias(wide)] if bias else [])]
        return net.op("MatMul", *inputs, **attrs), wide
    if layer == "bias":
        return net.op("MatMul", y, net.weight(width, width), net.own(width), y, activation="Tanh"), width
    if layer == "scale":
        op = draw(st.sampled_from(["Add", "Sub", "Mul"]))
        shape = draw(st.sampled_from([(), (width,), (1, width), (seq, 1), (1, seq, width)]))
        operands = (y, net.own(*shape)) if draw(st.booleans()) else (net.own(*shape), y)
        return net.op(op, *operands), width
    if layer == "norm":
        bias = [net.own(width)] if owned else []
        return net.op("LayerNormalization", y, net.own(width), *bias, axis=-1), width
    if layer == "residual":
        return net.op("MatMul", y, net.own(width, width), net.own(width), y), width
    return (net.op("Softmax", y, axis=-1) if layer == "softmax" else net.op("Relu", y)), width


@settings(deadline=None, max_examples=20)
@given(draw=st.data(), seed=st.integers(0, 1 << 20))
def test_random_networks_and_slots(draw: st.DataObject, seed: int) -> None:
    seq, width = draw.draw(st.integers(1, 3)), draw.draw(st.integers(1, 12))
    net = Net((seq, width), seed)
    y = "x"
    for _ in range(draw.draw(st.integers(1, 6))):
        y, width = grow(net, draw.draw, y, width, seq)
    data = net.bundle(y, (seq, width))
    names = draw.draw(st.lists(st.sampled_from(sorted(net.state)), unique=True)) if net.state else []
    who = draw.draw(st.lists(st.integers(0, OWNERS), min_size=1, max_size=7).map(lambda w: [*w, 1]))
    check(data, names, who[::-1], seed)


# -- what stands where ------------------------------------------------------------------------------------------------


def conv(net: Net, x: str, filters: str, *rest: str, channels_last: bool = True, kernel: int = 1, **attrs: Any) -> str:
    layout = "NHWC" if channels_last else "NCHW"
    pads = (kernel // 2,) * 4
    return net.op("Conv", x, filters, *rest, kernel_shape=(kernel, kernel), pads=pads, layout=layout, **attrs)


def pointwise(net: Net) -> str:
    y = conv(net, "x", net.weight(6, 6, 3, 3), kernel=3, activation="Relu")
    return conv(net, y, net.own(6, 6, 1, 1), net.own(6), y, activation="HardSwish")


def adapter(net: Net) -> str:
    """LoRA's filters, formed from matrices."""
    shapes = [net.constant(np.array(shape)) for shape in ((2, 6, 1, 1), (6, 2, 1, 1))]
    down, up = (
        net.op("Reshape", net.op("Transpose", net.own(*s), perm=(1, 0)), to)
        for s, to in zip(((6, 2), (2, 6)), shapes, strict=True)
    )
    return net.op("Add", conv(net, conv(net, "x", down), up), conv(net, "x", net.weight(6, 6, 1, 1), net.weight(6)))


def biased(net: Net) -> str:
    return conv(net, "x", net.weight(6, 6, 3, 3), net.own(6), "x", kernel=3, activation="GeluTanh")


def folded(net: Net) -> str:
    """A convolution with its norm folded in, both of a device's own."""
    factor = net.op("Div", net.own(6), net.op("Sqrt", net.own(6)))
    wide = net.op("Reshape", factor, net.constant(np.array([6, 1, 1, 1])))
    filters = net.op("Mul", net.weight(6, 6, 3, 3), wide)
    return conv(net, "x", filters, net.op("Add", net.own(6), factor), "x", kernel=3, activation="Elu")


def first(net: Net) -> str:
    """Channels first."""
    y = net.op("Transpose", "x", perm=(0, 3, 1, 2))
    wide = net.op("Reshape", net.own(6), net.constant(np.array([6, 1, 1, 1])))
    filters = net.op("Mul", net.weight(6, 6, 3, 3), wide)
    y = conv(net, y, filters, net.weight(6), kernel=3, channels_last=False, activation="Sigmoid")
    return net.op("Transpose", y, perm=(0, 2, 3, 1))


def both(net: Net) -> str:
    """The same tensor along the first axis and along the last."""
    filters, own = net.weight(6, 6, 1, 1), net.own(6)
    last = conv(net, "x", filters, own)
    turned = net.op("Transpose", last, perm=(0, 3, 1, 2))
    return net.op("Transpose", conv(net, turned, filters, own, channels_last=False), perm=(0, 2, 3, 1))


def clamped(net: Net) -> str:
    return conv(net, "x", net.weight(6, 6, 1, 1), net.own(6), activation="Clip", activation_min=0.0, activation_max=1.5)


@pytest.mark.parametrize("make", [pointwise, adapter, biased, folded, first, both, clamped])
def test_convolutions(make: Any) -> None:
    net = Net((4, 5, 6))
    check(net.bundle(make(net), (4, 5, 6)), list(net.state))


def head(net: Net) -> str:
    return net.op("MatMul", net.op("Relu", "x"), net.own(5, 7), net.own(5), transB=1)


def every_width() -> None:
    net = Net((7,))
    check(net.bundle(head(net), (5,)), list(net.state))


def test_a_head() -> None:
    every_width()


@on_other_targets
def test_other_widths(target: str) -> None:
    run_on(target, every_width)


def test_bindings_of_all_sizes_share_the_tables() -> None:
    net = Net((7,))
    data = net.bundle(head(net), (5,))
    model = lite_runtime.load(data)
    table = PersonalModel(model, ["w0"], {"x": (2, 7)}, slots=8)
    small, large = table.bind({"x": (1, 7)}), table.bind({"x": (4, 7)})
    assert small.fixed and small.inputs.keys() == {"x", SLOTS}
    (state,) = owners(model.bundle, ["w0"], 1)
    table.write(5, table.prepare(state))
    x = net.rng.standard_normal((4, 7)).astype(np.float32)
    small.inputs["x"][...], small.inputs[SLOTS][...] = x[2:3], 5
    large.inputs["x"][...], large.inputs[SLOTS][...] = x, (0, 0, 5, 0)
    small()
    large()
    (one,), (many,) = small.outputs.values(), large.outputs.values()
    assert one.tobytes() == many[2:3].tobytes()
    assert many[[0, 1, 3]].tobytes() == next(iter(model.run({"x": x}).values()))[[0, 1, 3]].tobytes()


def test_room_is_bounded_by_memory() -> None:
    net = Net((7,))
    data = net.bundle(head(net), (5,))
    table = PersonalModel(lite_runtime.load(data), list(net.state), {"x": (2, 7)}, slots=1000, memory=10 * 4 * 40)
    assert table.slot_bytes == 4 * 40 and table.slots == 10
    assert PersonalModel(lite_runtime.load(data), ["w0"], {"x": (2, 7)}, memory=0).slots == 2


def test_wrong_state_slots_and_shapes_are_refused() -> None:
    net = Net((7,))
    model = lite_runtime.load(net.bundle(head(net), (5,)))
    table = PersonalModel(model, ["w0"], {"x": (2, 7)}, slots=4)
    good = table.prepare(model.bundle.state)
    for state in ({}, {"w0": np.zeros((7, 5), np.float32)}, {"w0": np.zeros((5, 7))}):
        with pytest.raises(InputError, match="w0"):
            table.prepare(state)
    for slot in (-1, 4):
        with pytest.raises(InputError, match="slot"):
            table.write(slot, good)
    with pytest.raises(InputError, match="no state 'other'"):
        PersonalModel(model, ["other"], {"x": (2, 7)})
    with pytest.raises(InputError):
        table.bind({"x": (2, 8)})
    with pytest.raises(InputError):
        table.run({"x": np.zeros((2, 7), np.float32), SLOTS: np.array([0, 4])})


# -- what cannot go together ------------------------------------------------------------------------------------------


def over_batch(net: Net) -> str:
    return net.op("MatMul", net.op("Softmax", "x", axis=0), net.own(6, 6))


def mean_of_batch(net: Net) -> str:
    return net.op("Mul", net.op("Sub", "x", net.op("ReduceMean", "x", net.constant(np.array([0])))), net.own(6))


def whole_filters(net: Net) -> str:
    return conv(net, "x", net.own(6, 6, 3, 3), kernel=3)


def turned(net: Net) -> str:
    return net.op("MatMul", net.op("Transpose", "x", perm=(1, 0, 2, 3)), net.own(6, 6))


def embedding(net: Net) -> str:
    return net.op("Gather", net.own(9, 6), net.op("Cast", "x", to=7), axis=0)


def taken(net: Net) -> str:
    net.nodes.append(Node("Relu", ("x",), (SLOTS,), {}, "mine"))
    return net.op("Mul", SLOTS, net.own(6))


def nobody(net: Net) -> str:
    return net.op("Add", net.own(6), net.own(6))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (over_batch, "Softmax 'v0': its result mixes rows"),
        (mean_of_batch, "mixes rows"),
        (whole_filters, r"its filters are \[6, 6, 3, 3\]"),
        (turned, "mixes rows"),
        (embedding, "Gather cannot be computed with tensors"),
        (taken, "names begin with 'personal/'"),
        (nobody, "depends on no row"),
    ],
)
def test_what_cannot_go_together_says_why(make: Any, match: str) -> None:
    net = Net((4, 5, 6))
    data = net.bundle(make(net), (None, None, None))
    model = lite_runtime.load(data, backend="reference")
    with pytest.raises(Ungrouped, match=match):
        PersonalModel(model, list(net.state), {"x": (2, 4, 5, 6)})
    (state,) = owners(model.bundle, list(net.state), 1)
    x = np.abs(net.rng.standard_normal((2, 4, 5, 6))).astype(np.float32)
    (got,) = SeparateModel(model, list(net.state)).run({"x": x}, state).values()
    (want,) = lite_runtime.load(bundle.with_state(data, state), backend="reference").run({"x": x}).values()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
