"""LSTM, GRU and RNN against their references and onnxruntime: directions, layouts, states, lengths, both schedules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lite_runtime.errors import ShapeError
from lite_runtime.graph import Node
from lite_runtime.ops.registry import INFERS, Inference, Spec
from tests.lite_runtime.ops.one_node import check, onnxruntime_results

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def operands(
    op: str,
    time: int = 3,
    batch: int = 2,
    inputs: int = 5,
    hidden: int = 19,
    direction: str = "forward",
    layout: int = 0,
    bias: bool = True,
    lengths: tuple[int, ...] | None = None,
    states: bool = True,
    holes: bool = False,
) -> list[np.ndarray | None]:
    rng = np.random.default_rng(hidden * 7 + time)
    count, gates = 1 + (direction == "bidirectional"), GATES[op]

    def normal(*shape: int) -> np.ndarray:
        return rng.normal(0, 1 / np.sqrt(hidden + 4), shape).astype(np.float32)  # no chaos over 300 times

    state = (batch, count, hidden) if layout else (count, batch, hidden)
    given: list[np.ndarray | None] = [
        normal(*((batch, time, inputs) if layout else (time, batch, inputs))),
        normal(count, gates * hidden, inputs),
        normal(count, gates * hidden, hidden),
        normal(count, 2 * gates * hidden) if bias else None,
        None if lengths is None else np.array(lengths, np.int32),
        normal(*state) if states else None,
    ]
    if op == "LSTM":
        given += [normal(*state) if states else None, normal(count, 3 * hidden) if holes else None]
    return given


def compare(op: str, attrs: dict[str, Any] | None = None, *, native: bool = True, **shape: Any) -> None:
    attrs = dict(attrs or {})
    given = operands(op, direction=attrs.get("direction", "forward"), layout=attrs.get("layout", 0), **shape)
    attrs["hidden_size"] = given[2].shape[-1]  # type: ignore[union-attr]
    outputs = 3 if op == "LSTM" else 2
    constants = (1, 2, 3, 7)
    got = check(op, given, attrs, outputs=outputs, constants=constants, native=native, rtol=1e-4, atol=1e-5)
    if not attrs.get("layout") and not attrs.get("input_forget"):
        for ours, theirs in zip(got, onnxruntime_results(op, given, attrs, outputs), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_directions_and_layouts(op: str, direction: str, layout: int) -> None:
    compare(op, {"direction": direction, "layout": layout})


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("hidden", [1, 4, 16, 33, 65, 100])
def test_sizes(op: str, hidden: int) -> None:
    compare(op, hidden=hidden, inputs=1 + hidden // 3, batch=1 + hidden % 4, time=1 + hidden % 7)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lengths", [(4, 1, 3), (4, 4, 4), (0, 2, 4)])
def test_lengths(op: str, direction: str, lengths: tuple[int, ...]) -> None:
    given = operands(op, time=4, batch=3, direction=direction, lengths=lengths)
    check(
        op,
        given,
        {"direction": direction},
        outputs=3 if op == "LSTM" else 2,
        constants=(1, 2, 3),
        rtol=1e-4,
        atol=1e-5,
    )


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("hidden", [24, 112])
def test_sequences_long_and_short(op: str, hidden: int) -> None:
    """300 times are one native step, 20 times of 112 units one each; both give what the reference gives."""
    compare(op, hidden=hidden, time=20, batch=3)
    compare(op, hidden=hidden, time=300, batch=1, states=False, bias=False)


@pytest.mark.parametrize("linear_before_reset", [0, 1])
@pytest.mark.parametrize("hidden", [9, 128])
@pytest.mark.parametrize("bias", [False, True])
def test_gru_resets(linear_before_reset: int, hidden: int, bias: bool) -> None:
    compare("GRU", {"linear_before_reset": linear_before_reset}, hidden=hidden, bias=bias, time=5)


@pytest.mark.parametrize("attrs", [{}, {"input_forget": 1}, {"clip": 0.3}, {"direction": "bidirectional"}])
def test_lstm_peepholes(attrs: dict[str, Any]) -> None:
    given = operands("LSTM", holes=True, time=4, direction=attrs.get("direction", "forward"))
    check("LSTM", given, attrs, outputs=3, constants=(1, 2, 3, 7), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", GATES)
def test_clip_and_large_values(op: str) -> None:
    given = operands(op)
    check(op, given, {"clip": 0.5}, outputs=2, constants=(1, 2, 3), rtol=1e-4, atol=1e-5)
    given[0] = given[0] * np.float32(1e4)  # type: ignore[operator]
    with np.errstate(over="ignore"):
        check(op, given, {}, outputs=2, constants=(1, 2, 3), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_fewer_outputs(outputs: int) -> None:
    given = operands("LSTM")
    check("LSTM", given, {}, outputs=outputs, constants=(1, 2, 3), rtol=1e-4, atol=1e-5)


def test_activations() -> None:
    given = operands("RNN")
    check("RNN", given, {"activations": ("Relu",)}, constants=(1, 2, 3), rtol=1e-4, atol=1e-5)
    check("RNN", given, {"activations": ("Elu",), "activation_alpha": (0.5,)}, constants=(1, 2, 3), native=False)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("hidden", [4, 33])
@pytest.mark.parametrize("attrs", [{}, {"direction": "bidirectional"}, {"linear_before_reset": 1}])
def test_computed_weights(op: str, hidden: int, attrs: dict[str, Any]) -> None:
    if op != "GRU" and "linear_before_reset" in attrs:
        pytest.skip("an attribute of GRU")
    given = operands(op, hidden=hidden, direction=attrs.get("direction", "forward"))
    check(op, given, attrs | {"hidden_size": hidden}, outputs=2, rtol=1e-4, atol=1e-5)


def test_computed_peepholes_take_the_reference() -> None:
    check("LSTM", operands("LSTM", holes=True), {}, outputs=3, native=False)


def infer(op: str, shapes: list[tuple[int, ...]], **attrs: Any) -> tuple[Spec, ...]:
    specs = [Spec("int32" if i == 4 else "float32", s) for i, s in enumerate(shapes)]
    return tuple(INFERS[op](Inference(Node(op, tuple("abcdefgh"), ("y",), attrs), specs, [None] * len(specs))))


GOOD = [(3, 2, 5), (1, 16, 5), (1, 16, 4), (1, 32), (2,), (1, 2, 4), (1, 2, 4), (1, 12)]


def test_types_of_results() -> None:
    assert [s.shape for s in infer("LSTM", GOOD)] == [(3, 1, 2, 4), (1, 2, 4), (1, 2, 4)]


@pytest.mark.parametrize("i", range(len(GOOD)))
def test_shapes_that_do_not_fit_are_refused(i: int) -> None:
    shapes = list(GOOD)
    shapes[i] = (*shapes[i][:-1], shapes[i][-1] + 1)
    with pytest.raises(ShapeError):
        infer("LSTM", shapes)
    shapes[i] = GOOD[i][:-1]
    with pytest.raises(ShapeError):
        infer("LSTM", shapes)


@pytest.mark.parametrize(
    "attrs",
    [
        {"direction": "up"},
        {"direction": "bidirectional"},
        {"hidden_size": 5},
        {"hidden_size": 0},
        {"layout": 2},
        {"clip": 0.0},
        {"clip": "much"},
        {"activations": ("Sigmoid",)},
        {"activations": ("Sigmoid", "Tanh", "Cosh")},
        {"input_forget": 3},
    ],
)
def test_hostile_attributes_are_refused(attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        infer("LSTM", GOOD, **attrs)


def narrow(op: str, given: list[np.ndarray | None], block: int) -> list[np.ndarray | None]:
    """The operands with R as int8, and its scales."""
    r = given[2]
    assert r is not None
    blocks = -(-r.shape[2] // block)
    scales = np.zeros((*r.shape[:2], blocks), np.float32)
    for i in range(blocks):
        scales[..., i] = np.abs(r[..., i * block : (i + 1) * block]).max(-1) / 127
    whole = np.rint(r / np.repeat(scales, block, -1)[..., : r.shape[2]]).astype(np.int8)
    return [*given[:2], whole, *given[3:], *[None] * (SCALES[op] - len(given)), scales]


SCALES = {"LSTM": 8, "GRU": 6}
narrow_ops = pytest.mark.parametrize("op", SCALES)


def compare_narrow(op: str, block: int, attrs: dict[str, Any] | None = None, scale: float = 1.0, **shape: Any) -> None:
    attrs = dict(attrs or {})
    given = operands(op, direction=attrs.get("direction", "forward"), layout=attrs.get("layout", 0), **shape)
    if given[5] is not None:
        given[5] = given[5] * np.float32(scale)
    attrs |= {"hidden_size": given[2].shape[-1], "block_size": block}  # type: ignore[union-attr]
    outputs, constants = (3, (1, 2, 3, 7, 8)) if op == "LSTM" else (2, (1, 2, 3, 6))
    check(op, narrow(op, given, block), attrs, outputs=outputs, constants=constants, rtol=1e-4, atol=1e-4)


@narrow_ops
@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_byte_weights_in_every_direction(op: str, direction: str, layout: int) -> None:
    compare_narrow(op, 8, {"direction": direction, "layout": layout}, holes=True, lengths=(3, 1))


@narrow_ops
@pytest.mark.parametrize("hidden", [1, 3, 4, 16, 33, 65, 100])
@pytest.mark.parametrize("block", [4, 6, 32, 1000])
def test_byte_weights_of_any_size(op: str, hidden: int, block: int) -> None:
    """Blocks that are no multiple of 4 become float32 when loaded."""
    compare_narrow(op, block, hidden=hidden, batch=1 + hidden % 4, time=1 + hidden % 7, inputs=3)


@narrow_ops
@pytest.mark.parametrize("hidden", [130, 300])
def test_byte_weights_a_step_a_time(op: str, hidden: int) -> None:
    compare_narrow(op, 32, hidden=hidden, batch=2, time=5, inputs=7)


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("hidden", [19, 300])
def test_byte_weights_of_a_gru_that_resets_late(hidden: int, layout: int) -> None:
    attrs = {"linear_before_reset": 1, "direction": "bidirectional", "layout": layout}
    compare_narrow("GRU", 4, attrs, hidden=hidden, lengths=(2, 3))


@narrow_ops
def test_an_initial_state_beyond_one_widens_the_steps(op: str) -> None:
    compare_narrow(op, 4, scale=40.0)


@pytest.mark.parametrize("rounding", ["SYMMETRIC", "ASYMMETRIC"])
@pytest.mark.parametrize(("hidden", "block"), [(1, 1), (19, 19), (64, 64), (100, 32), (530, 530), (700, 700)])
def test_h_rounded_to_bytes(hidden: int, block: int, rounding: str) -> None:
    """As LiteRT does it. A number near a half may be rounded otherwise than by the reference."""
    attrs = {"rounding": rounding, "direction": "bidirectional" if hidden < 100 else "forward"}
    compare_narrow("LSTM", block, attrs, hidden=hidden, batch=2, time=4, inputs=3, holes=hidden < 100)


def test_h_rounded_to_bytes_needs_scales() -> None:
    given = operands("LSTM")
    node = Node("LSTM", tuple(f"i{i}" for i in range(8)), ("y",), {"hidden_size": 19, "rounding": "SYMMETRIC"}, "it")
    with pytest.raises(ShapeError, match="rounding"):
        INFERS["LSTM"](Inference(node, [None if x is None else Spec(x.dtype.name, x.shape) for x in given], given))


def test_byte_weights_of_too_many_units_become_float32() -> None:
    compare_narrow("LSTM", 32, hidden=2060, time=1, batch=1, inputs=1, bias=False, states=True)


@narrow_ops
@pytest.mark.parametrize("attrs", [{}, {"block_size": 0}, {"block_size": 3}])
def test_byte_weights_and_scales_must_fit(op: str, attrs: dict[str, Any]) -> None:
    given = narrow(op, operands(op), 4)
    node = Node(op, tuple(f"i{i}" for i in range(len(given))), ("y",), {"hidden_size": 19, **attrs}, "it")
    specs = [None if x is None else Spec(x.dtype.name, x.shape) for x in given]
    with pytest.raises(ShapeError):
        INFERS[op](Inference(node, specs, given))


def test_a_block_without_scales_is_refused() -> None:
    given = operands("LSTM")
    node = Node("LSTM", tuple(f"i{i}" for i in range(8)), ("y",), {"hidden_size": 19, "block_size": 4}, "it")
    with pytest.raises(ShapeError, match="scales"):
        INFERS["LSTM"](Inference(node, [None if x is None else Spec(x.dtype.name, x.shape) for x in given], given))
