"""Subgraphs, variables, recurrent cells, transforms and detection against LiteRT."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import flatbuffers.flexbuffers as flexbuffers
import numpy as np
import onnx_ir as ir
import pytest
from ai_edge_litert.interpreter import Interpreter

import lite_runtime
from converter import convert
from converter.errors import ConvertError
from converter.frontends import tflite
from converter.ir.kept import METADATA
from converter.lowering import lower
from lite_runtime import reference
from lite_runtime.graph import StateUse
from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor, litert
from tests.converter.frontends.tflite.support import I32, C, Out, X, check, check_op, floats, run, translated


def _flexbuffer(settings: dict[str, Any]) -> np.ndarray:
    """A map of numbers, as the bytes options hold."""
    writer = flexbuffers.Builder()
    with writer.Map():
        for key, value in settings.items():
            writer.Key(key)
            (writer.Bool if isinstance(value, bool) else writer.Float if isinstance(value, float) else writer.Int)(
                value
            )
    return np.frombuffer(bytes(writer.Finish()), np.uint8)


# subgraphs


def _branching() -> Builder:
    """x doubled where the flag is set, else negated and added to y."""
    builder = Builder()
    flag, x, y = builder.input("flag", (), "bool"), builder.input("x", (2, 3)), builder.input("y", (2, 3))
    then, other = builder.subgraph("then"), builder.subgraph("else")
    for graph in (then, other):
        a, b = graph.input("a", (2, 3)), graph.input("b", (2, 3))
        if graph is then:
            graph.output(graph.op("ADD", [a, a], (2, 3)))
        else:
            graph.output(graph.op("SUB", [b, a], (2, 3)))
    builder.output(builder.op("IF", [flag, x, y], (2, 3), "float32", then_subgraph_index=1, else_subgraph_index=2))
    return builder


@pytest.mark.parametrize("flag", [True, False])
def test_if(flag: bool) -> None:
    check(_branching(), [np.array(flag), floats(2, 3), floats(2, 3, seed=1)])


def test_while() -> None:
    """Powers of two until a bound; a counter goes along."""
    builder = Builder()
    limit, x = builder.input("limit", (), "int32"), builder.input("x", (3,))
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    for graph in (condition, body):
        i, n, v = graph.input("i", (), "int32"), graph.input("n", (), "int32"), graph.input("v", (3,))
        if graph is condition:
            graph.output(graph.op("LESS", [i, n], (), "bool"))
        else:
            one = graph.const(np.int32(1))
            graph.output(graph.op("ADD", [i, one], ()), n, graph.op("ADD", [v, v], (3,)))
    results = [builder.tensor("", s, d) for s, d in (((), "int32"), ((), "int32"), ((3,), "float32"))]
    start = builder.const(np.int32(0))
    builder.node("WHILE", [start, limit, x], results, cond_subgraph_index=1, body_subgraph_index=2)
    builder.output(results[0], results[2])
    for turns in (0, 1, 5):
        check(builder, [np.int32(turns), floats(3)])


def test_while_that_reads_a_variable() -> None:
    builder = Builder()
    limit = builder.input("limit", (), "int32")
    handle = builder.op("VAR_HANDLE", [], (), "resource", shared_name="step")
    condition, body = builder.subgraph("condition"), builder.subgraph("body")
    for graph in (condition, body):
        n, h, total = graph.input("n", (), "int32"), graph.input("h", (), "resource"), graph.input("t", (2,))
        if graph is condition:
            graph.output(graph.op("GREATER", [n, graph.const(np.int32(0))], (), "bool"))
        else:
            step = graph.op("READ_VARIABLE", [h], (2,), "float32")
            fewer = graph.op("SUB", [n, graph.const(np.int32(1))], ())
            graph.output(fewer, h, graph.op("ADD", [total, step], (2,)))
    results = [builder.tensor("", s, d) for s, d in (((), "int32"), ((), "resource"), ((2,), "float32"))]
    operands = [limit, handle, builder.const(np.zeros(2, np.float32))]
    builder.node("WHILE", operands, results, cond_subgraph_index=1, body_subgraph_index=2)
    builder.output(results[2])
    model = translated(builder.build())
    assert [v.name for v in model.graph.inputs] == ["limit", "step"]
    np.testing.assert_array_equal(run(model, [np.int32(3), np.float32([1, 2])])[0], [3, 6])


def test_composite() -> None:
    builder = Builder()
    x = builder.input("x", (4,))
    inner = builder.subgraph("decomposition")
    a = inner.input("a", (4,))
    inner.output(inner.op("MUL", [a, a], (4,)))
    options = {"name": "my.square", "decomposition_subgraph_index": 1, "composite_attributes": _flexbuffer({})}
    builder.output(builder.op("STABLEHLO_COMPOSITE", [x], (4,), **options))
    check(builder, [floats(4)])


def test_call_of_itself_is_refused() -> None:
    builder = Builder()
    builder.output(builder.op("CALL", [builder.input("x", (4,))], (4,), subgraph=0))
    with pytest.raises(ConvertError, match="calls itself"):
        translated(builder.build())


# variables


def with_state(builder: Builder, steps: Sequence[Sequence[np.ndarray]], limit: float = 1e-5) -> ir.Model:
    """Several runs in a row: LiteRT keeps its variables, we hand ours on. The model.

    Floats agree within `limit` of the largest, integers within one step.
    """
    data = builder.build()
    runner = Interpreter(model_content=data, num_threads=1)
    runner.allocate_tensors()
    model = translated(data)
    graph = lower(model)
    variables = tflite.load(data).variables
    use, state = variables.uses["predict"], dict(variables.initial)
    own, results_of = ([v.name for v in side] for side in use.seen(graph))
    for inputs in steps:
        for detail, array in zip(runner.get_input_details(), inputs, strict=True):
            runner.set_tensor(detail["index"], array)
        runner.invoke()
        held = {name: state[key] for name, key in use.reads.items()}
        found = reference.run(graph, {**dict(zip(own, inputs, strict=True)), **held})
        state |= {key: found[name] for name, key in use.writes.items()}
        results = [found[name] for name in results_of]
        for detail, mine in zip(runner.get_output_details(), results, strict=True):
            theirs = runner.get_tensor(detail["index"])
            assert mine.shape == theirs.shape and mine.dtype == theirs.dtype
            off = np.abs(mine.astype(np.float64) - theirs).max()
            allowed = 1.0 if mine.dtype.kind == "i" else limit * max(1e-3, np.abs(theirs).max())
            assert off <= allowed, (off, mine, theirs)
    return model


def test_resource_variable() -> None:
    """A running sum."""
    builder = Builder()
    x = builder.input("x", (3,))
    handle = builder.op("VAR_HANDLE", [], (), "resource", shared_name="total")
    total = builder.op("ADD", [builder.op("READ_VARIABLE", [handle], (3,), "float32"), x], (3,), "float32")
    builder.node("ASSIGN_VARIABLE", [handle, total], [])
    builder.output(total)
    first = builder.subgraph("init")
    own = first.op("VAR_HANDLE", [], (), "resource", shared_name="total")
    first.node("ASSIGN_VARIABLE", [own, first.const(np.zeros(3, np.float32))], [])
    operators = builder.table.operators
    builder.node("CALL_ONCE", [], [], init_subgraph_index=1)
    operators.insert(0, operators.pop())
    model = with_state(builder, [[floats(3, seed=i)] for i in range(3)])
    kept = {"total": {"next": "total.next", "initial": [0.0] * 3}}
    assert json.loads(model.graph.metadata_props[METADATA]) == kept
    variables = tflite.load(builder.build()).variables
    assert variables.uses == {"predict": StateUse({"total": "total"}, {"total.next": "total"})}
    assert {name: array.tolist() for name, array in variables.initial.items()} == {"total": [0.0] * 3}


def test_variable_never_assigned_is_constant() -> None:
    builder = Builder()
    x = builder.input("x", (3,))
    first = builder.subgraph("init")
    own = first.op("VAR_HANDLE", [], (), "resource", shared_name="weights")
    first.node("ASSIGN_VARIABLE", [own, first.const(np.float32([1, 2, 3]))], [])
    builder.node("CALL_ONCE", [], [], init_subgraph_index=1)
    handle = builder.op("VAR_HANDLE", [], (), "resource", shared_name="weights")
    builder.output(builder.op("MUL", [x, builder.op("READ_VARIABLE", [handle], (3,), "float32")], (3,), "float32"))
    model = translated(builder.build())
    assert len(model.graph.inputs) == 1 and METADATA not in model.graph.metadata_props
    check(builder, [floats(3)])


# recurrent cells

IN, UNITS, BATCH, TIME = 5, 4, 2, 6


def _weights(builder: Builder, *shape: int, seed: int, quantised: bool = False) -> Tensor:
    real = floats(*shape, seed=seed) * 0.5
    if not quantised:
        return builder.const(real)
    quant = Quant(float(np.abs(real).max()) / 127)
    return builder.const(quant.store(real, np.int8), quant=quant)


def lstm_operands(
    builder: Builder,
    x: Tensor,
    seed: int = 0,
    *,
    coupled: bool = False,
    peephole: bool = False,
    projected: int = 0,
    norm: bool = False,
    quantised: bool = False,
) -> list[Tensor | None]:
    """The 18 weights of a direction and its input, then two states, then norms."""
    out = projected or UNITS

    def matrix(k: int, *shape: int) -> Tensor:
        return _weights(builder, *shape, seed=seed + k, quantised=quantised)

    operands: list[Tensor | None] = [x]
    operands += [None if coupled and k == 0 else matrix(k, UNITS, IN) for k in range(4)]
    operands += [None if coupled and k == 0 else matrix(4 + k, UNITS, out) for k in range(4)]
    operands += [matrix(8 + k, UNITS) if peephole and not (coupled and k == 0) else None for k in range(3)]
    operands += [None if coupled and k == 0 else builder.const(floats(UNITS, seed=seed + 20 + k)) for k in range(4)]
    operands += [matrix(16, out, UNITS) if projected else None, None]
    operands += [builder.variable(f"h{seed}", (BATCH, out)), builder.variable(f"c{seed}", (BATCH, UNITS))]
    if norm:
        operands += [builder.const(floats(UNITS, seed=seed + 30 + k)) for k in range(4)]
    return operands


LSTMS: list[dict[str, Any]] = [
    {},
    {"coupled": True},
    {"peephole": True},
    {"coupled": True, "peephole": True},
    {"projected": 3},
    {"norm": True},
    {"projected": 3, "norm": True, "peephole": True},
]


@pytest.mark.parametrize("time_major", [True, False])
@pytest.mark.parametrize("kind", range(len(LSTMS)))
@pytest.mark.parametrize("clip", [0.0, 0.3])
def test_sequence_lstm(kind: int, clip: float, time_major: bool) -> None:
    builder = Builder()
    shape = (TIME, BATCH, IN) if time_major else (BATCH, TIME, IN)
    operands = lstm_operands(builder, builder.input("x", shape), **LSTMS[kind])
    width = LSTMS[kind].get("projected", UNITS)
    options = {"fused_activation_function": "TANH", "cell_clip": clip, "proj_clip": clip, "time_major": time_major}
    builder.output(builder.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (*shape[:2], width), **options))
    with_state(builder, [[floats(*shape, seed=i)] for i in range(2)])


def test_sequence_lstm_hybrid() -> None:
    """int8 weights: LiteRT rounds activations to 8 bits as well, we do not. Weights stay integers in the file."""
    builder = Builder()
    shape = (TIME, BATCH, IN)
    operands = lstm_operands(builder, builder.input("x", shape), quantised=True)
    options = {"fused_activation_function": "TANH", "time_major": True}
    builder.output(builder.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (*shape[:2], UNITS), **options))
    model = with_state(builder, [[floats(*shape, seed=i)] for i in range(2)], limit=0.03)
    kept = [v for v in model.graph.initializers.values() if v.dtype == ir.DataType.INT8]
    assert sorted(tuple(v.shape) for v in kept if v.shape is not None and len(v.shape) == 3) == [(1, 16, 4), (1, 16, 5)]


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_lstm_step(kind: int) -> None:
    builder = Builder()
    operands = lstm_operands(builder, builder.input("x", (BATCH, IN)), **LSTMS[kind])
    builder.output(builder.op("LSTM", operands, (BATCH, UNITS), fused_activation_function="TANH", kernel_type="FULL"))
    try:
        with_state(builder, [[floats(BATCH, IN, seed=i)] for i in range(3)])
    except RuntimeError:  # builds of LiteRT that want a scratch output
        builder = Builder()
        operands = lstm_operands(builder, builder.input("x", (BATCH, IN)), **LSTMS[kind])
        scratch = builder.tensor("scratch", (BATCH, UNITS * 4))
        result = builder.tensor("y", (BATCH, UNITS))
        builder.node("LSTM", operands, [scratch, result], fused_activation_function="TANH", kernel_type="FULL")
        builder.output(result)
        with_state(builder, [[floats(BATCH, IN, seed=i)] for i in range(3)])


def test_basic_lstm() -> None:
    builder = Builder()
    x, h = builder.input("x", (BATCH, IN)), builder.input("h", (BATCH, UNITS))
    w, b = builder.const(floats(4 * UNITS, IN + UNITS) * 0.5), builder.const(floats(4 * UNITS))
    c = builder.input("c", (BATCH, UNITS))
    results = [builder.tensor("", (BATCH, n)) for n in (UNITS, UNITS, IN + UNITS, 4 * UNITS)]
    builder.node("LSTM", [x, h, w, b, c], results, version=2, kernel_type="BASIC", fused_activation_function="TANH")
    builder.output(*results[:2])
    check(builder, [floats(BATCH, IN), floats(BATCH, UNITS), floats(BATCH, UNITS, seed=1)])


@pytest.mark.parametrize("merged", [True, False])
def test_bidirectional_lstm(merged: bool) -> None:
    builder = Builder()
    shape = (TIME, BATCH, IN)
    x = builder.input("x", shape)
    forward, backward = lstm_operands(builder, x), lstm_operands(builder, x, seed=100)
    operands = [*forward[:18], *backward[1:18], *forward[18:20], *backward[18:20], *[None] * 9]
    options = {"fused_activation_function": "TANH", "time_major": True, "merge_outputs": merged}
    widths = [2 * UNITS] if merged else [UNITS, UNITS]
    results = [builder.tensor("", (TIME, BATCH, n)) for n in widths]
    builder.node("BIDIRECTIONAL_SEQUENCE_LSTM", operands, results, **options)
    builder.output(*results)
    with_state(builder, [[floats(*shape, seed=i)] for i in range(2)])


def _rnn(builder: Builder, seed: int = 0) -> list[Tensor]:
    return [
        _weights(builder, UNITS, IN, seed=seed),
        _weights(builder, UNITS, UNITS, seed=seed + 1),
        builder.const(floats(UNITS, seed=seed + 2)),
        builder.variable(f"h{seed}", (BATCH, UNITS)),
    ]


@pytest.mark.parametrize("name", ["h", "h" * 5000, ""])
def test_variables_of_one_name_are_kept_apart(name: str) -> None:
    """Whatever a file calls them; a bundle's names have an end."""
    builder = Builder()
    x = builder.input("x", (BATCH, UNITS))
    for seed in (0, 10):
        weights = [_weights(builder, UNITS, UNITS, seed=seed + i) for i in (0, 1)]
        operands = [x, *weights, builder.const(floats(UNITS, seed=seed + 2)), builder.variable(name, (BATCH, UNITS))]
        x = builder.op("RNN", operands, (BATCH, UNITS), fused_activation_function="TANH")
    builder.output(x)
    with_state(builder, [[floats(BATCH, UNITS, seed=i)] for i in range(3)])
    made = convert(builder.build()).bundle
    assert made is not None and len(lite_runtime.load(made).state_dict()) == 2


@pytest.mark.parametrize("activation", ["TANH", "RELU", "RELU6", "NONE"])
def test_rnn(activation: str) -> None:
    builder = Builder()
    operands = [builder.input("x", (BATCH, IN)), *_rnn(builder)]
    builder.output(builder.op("RNN", operands, (BATCH, UNITS), fused_activation_function=activation))
    with_state(builder, [[floats(BATCH, IN, seed=i)] for i in range(3)])
    for time_major in (True, False):
        builder = Builder()
        shape = (TIME, BATCH, IN) if time_major else (BATCH, TIME, IN)
        operands = [builder.input("x", shape), *_rnn(builder)]
        options = {"fused_activation_function": activation, "time_major": time_major}
        builder.output(builder.op("UNIDIRECTIONAL_SEQUENCE_RNN", operands, (*shape[:2], UNITS), **options))
        with_state(builder, [[floats(*shape, seed=i)] for i in range(2)])


@pytest.mark.parametrize("merged", [True, False])
def test_bidirectional_rnn(merged: bool) -> None:
    builder = Builder()
    shape = (TIME, BATCH, IN)
    operands = [builder.input("x", shape), *_rnn(builder), *_rnn(builder, 10), *[None] * 3]
    results = [builder.tensor("", (TIME, BATCH, n)) for n in ([2 * UNITS] if merged else [UNITS, UNITS])]
    options = {"fused_activation_function": "TANH", "time_major": True, "merge_outputs": merged}
    builder.node("BIDIRECTIONAL_SEQUENCE_RNN", operands, results, **options)
    builder.output(*results)
    with_state(builder, [[floats(*shape, seed=i)] for i in range(2)])


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_svdf(rank: int, bias: bool) -> None:
    memory, features = 7, UNITS * rank
    builder = Builder()
    operands = [
        builder.input("x", (BATCH, IN)),
        _weights(builder, features, IN, seed=1),
        _weights(builder, features, memory, seed=2),
        builder.const(floats(UNITS)) if bias else None,
        builder.variable("line", (BATCH, memory * features)),
    ]
    builder.output(builder.op("SVDF", operands, (BATCH, UNITS), rank=rank, fused_activation_function="RELU"))
    with_state(builder, [[floats(BATCH, IN, seed=i)] for i in range(10)])


def _int8(real: np.ndarray, dtype: Any = np.int8) -> tuple[np.ndarray, Quant]:
    quant = Quant(float(np.abs(real).max()) / np.iinfo(dtype).max)
    return quant.store(real, dtype), quant


def _bias(builder: Builder, real: np.ndarray, scale: float) -> Tensor:
    return builder.const(np.rint(real / scale).astype(np.int32), quant=Quant(scale))


def test_svdf_int8() -> None:
    """Integers throughout: int16 memory, and a zero point that makes saturation the activation."""
    memory, rank = 7, 2
    builder = Builder()
    quant, line, out = Quant(3 / 127, 5), Quant(8 / 32767), Quant(8 / 255, -128)
    (features, fq), (time, tq) = _int8(floats(UNITS * rank, IN) * 0.5), _int8(floats(UNITS * rank, memory), np.int16)
    operands = [
        builder.input("x", (BATCH, IN), "int8", quant=quant),
        builder.const(features, quant=fq),
        builder.const(time, quant=tq),
        _bias(builder, floats(UNITS), float(line.scale) * float(tq.scale)),
        builder.variable("line", (BATCH, memory * UNITS * rank), "int16", quant=line),
    ]
    options = {"rank": rank, "fused_activation_function": "RELU"}
    builder.output(builder.op("SVDF", operands, (BATCH, UNITS), "int8", quant=out, version=3, **options))
    with_state(builder, [[quant.store(floats(BATCH, IN, seed=i), np.int8)] for i in range(9)])


@pytest.mark.parametrize("time_major", [True, False])
def test_sequence_lstm_int8(time_major: bool) -> None:
    """Integers throughout: int8 output state, int16 cell; the state starts at its zero point."""
    builder = Builder()
    shape = (TIME, BATCH, IN) if time_major else (BATCH, TIME, IN)
    quant, hidden, cell = Quant(3 / 127, 5), Quant(1 / 128, -1), Quant(2.0**-11)
    x = builder.input("x", shape, "int8", quant=quant)
    weights = [_int8(floats(UNITS, n, seed=10 + k) * 0.5) for k, n in enumerate([IN] * 4 + [UNITS] * 4)]
    operands: list[Tensor | None] = [x, *(builder.const(w, quant=q) for w, q in weights), None, None, None]
    for k in range(4):
        scale = float(quant.scale) * float(weights[k][1].scale)
        operands.append(_bias(builder, floats(UNITS, seed=30 + k) * 0.3, scale))
    operands += [None, None, builder.variable("h", (BATCH, UNITS), "int8", quant=hidden)]
    operands += [builder.variable("c", (BATCH, UNITS), "int16", quant=cell)]
    gates = [builder.tensor("", (), "int16", quant=Quant(2.0**-12)) for _ in range(4)]
    scratch = [*gates, builder.tensor("", (), "int8", quant=hidden)]
    options = {"fused_activation_function": "TANH", "time_major": time_major, "intermediates": scratch}
    builder.output(
        builder.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (*shape[:2], UNITS), "int8", quant=hidden, **options)
    )
    model = with_state(builder, [[quant.store(floats(*shape, seed=i), np.int8)] for i in range(4)])
    assert json.loads(model.graph.metadata_props[METADATA])["h"]["initial"] == -1


# transforms


@pytest.mark.parametrize(("shape", "lengths"), [((2, 8, 16), (8, 16)), ((4, 8), (2, 4)), ((3, 5), (8, 8))])
def test_rfft2d(shape: tuple[int, ...], lengths: tuple[int, int]) -> None:
    check_op("RFFT2D", [X(floats(*shape)), I32(*lengths)], [Out("complex64")])
    for part in ("REAL", "IMAG", "COMPLEX_ABS"):
        builder = Builder()
        x = builder.input("x", shape)
        bins = (*shape[:-2], lengths[0], lengths[1] // 2 + 1)
        z = builder.op("RFFT2D", [x, builder.const(np.int32(lengths))], bins, "complex64")
        builder.output(builder.op(part, [z], bins, "float32"))
        check(builder, [floats(*shape)])


def test_reshaped_complex_numbers_stay_pairs() -> None:
    """As after the Fourier transform of sound features: the axis of size 1 goes, then magnitudes."""
    builder = Builder()
    x = builder.input("x", (4, 1, 16))
    z = builder.op("RFFT2D", [x, builder.const(np.int32([1, 16]))], (4, 1, 9), "complex64")
    flat = builder.op("RESHAPE", [z, builder.const(np.int32([4, 9]))], (4, 9), "complex64", new_shape=[4, 9])
    builder.output(builder.op("COMPLEX_ABS", [flat], (4, 9), "float32"))
    check(builder, [floats(4, 1, 16)])


@pytest.mark.parametrize("axes", [[-2], [1], []])
def test_axes_of_complex_numbers_are_counted_without_their_pairs(axes: list[int]) -> None:
    """A short-time Fourier transform of frames drops the row axis, often counted from the end."""
    builder = Builder()
    x = builder.input("x", (4, 1, 16))
    z = builder.op("RFFT2D", [x, builder.const(np.int32([1, 16]))], (4, 1, 9), "complex64")
    flat = builder.op("SQUEEZE", [z], (4, 9), "complex64", squeeze_dims=axes)
    builder.output(builder.op("COMPLEX_ABS", [flat], (4, 9), "float32"))
    check(builder, [floats(4, 1, 16)])


def test_casts_and_shapes_of_complex_numbers() -> None:
    """As in models of sound that take the real part of a spectrum by a Cast."""
    builder = Builder()
    x = builder.input("x", (4, 1, 16))
    z = builder.op("RFFT2D", [x, builder.const(np.int32([1, 16]))], (4, 1, 9), "complex64")
    builder.output(builder.op("CAST", [z], (4, 1, 9), "float32"))
    builder.output(builder.op("SHAPE", [z], (3,), "int32", out_type="INT32"))
    made = builder.op("CAST", [x], (4, 1, 16), "complex64")
    builder.output(builder.op("COMPLEX_ABS", [made], (4, 1, 16), "float32"))
    check(builder, [floats(4, 1, 16)])


def test_irfft2d() -> None:
    shape = (3, 8, 8)
    builder = Builder()
    lengths = builder.const(np.int32([8, 8]))
    z = builder.op("RFFT2D", [builder.input("x", shape), lengths], (3, 8, 5), "complex64")
    builder.output(builder.op("Irfft2d", [z, lengths], shape, "float32", custom=b""))
    x = floats(*shape)
    np.testing.assert_allclose(run(translated(builder.build()), [x])[0], x, atol=1e-5)


# boxes


def detection(**options: Any) -> tuple[Builder, list[np.ndarray]]:
    """Boxes on a grid with close scores; every third class wins somewhere."""
    count, classes = 60, 4
    rng = np.random.default_rng(5)
    anchors = np.concatenate([rng.uniform(0.1, 0.9, (count, 2)), rng.uniform(0.1, 0.4, (count, 2))], 1)
    builder = Builder()
    boxes = builder.input("boxes", (1, count, 4))
    scores = builder.input("scores", (1, count, classes + 1))
    settings = {
        "max_detections": 10, "max_classes_per_detection": 1, "detections_per_class": 5, "use_regular_nms": False,
        "nms_score_threshold": 0.3, "nms_iou_threshold": 0.4, "num_classes": classes,
        "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0, "w_scale": 5.0, **options,
    }  # fmt: skip
    writer = flexbuffers.Builder()
    with writer.Map():
        for key, value in settings.items():
            writer.Key(key)
            (writer.Bool if isinstance(value, bool) else writer.Float if isinstance(value, float) else writer.Int)(
                value
            )
    slots = settings["max_detections"] * settings["max_classes_per_detection"]
    results = [builder.tensor("", s) for s in ((1, slots, 4), (1, slots), (1, slots), (1,))]
    operands = [boxes, scores, builder.const(anchors.astype(np.float32))]
    builder.node("TFLite_Detection_PostProcess", operands, results, custom=_flexbuffer(settings).tobytes())
    builder.output(*results)
    return builder, [rng.standard_normal((1, count, 4)).astype(np.float32),
                     rng.uniform(0, 1, (1, count, classes + 1)).astype(np.float32)]  # fmt: skip


@pytest.mark.parametrize("regular", [True, False])
@pytest.mark.parametrize(("score", "most"), [(0.3, 10), (0.9, 10), (0.3, 40)])
def test_detection_postprocess(regular: bool, score: float, most: int) -> None:
    builder, inputs = detection(use_regular_nms=regular, nms_score_threshold=score, max_detections=most)
    _check_detections(builder, inputs)


def test_detection_of_several_classes() -> None:
    builder, inputs = detection(max_classes_per_detection=2)
    _check_detections(builder, inputs, each=2)


def _check_detections(builder: Builder, inputs: Sequence[np.ndarray], each: int = 1) -> None:
    """Slots beyond the count are zero here; LiteRT leaves there what lay in memory."""
    data = builder.build()
    mine, theirs = run(translated(data), inputs), litert(data, inputs)
    assert mine[3] == theirs[3]
    meant = int(mine[3][0]) * each
    for ours, oracle in zip(mine[:3], theirs[:3], strict=True):
        assert ours.shape == oracle.shape and ours.dtype == oracle.dtype
        np.testing.assert_allclose(ours[:, :meant], oracle[:, :meant], rtol=1e-5, atol=1e-6)
        assert not ours[:, meant:].any()


def test_detection_without_options_is_refused() -> None:
    builder = Builder()
    tensors = [builder.input("b", (1, 4, 4)), builder.input("s", (1, 4, 2)), builder.const(floats(4, 4))]
    builder.output(builder.op("TFLite_Detection_PostProcess", tensors, (1, 4, 4), custom=b""))
    with pytest.raises(ConvertError, match="max_detections"):
        translated(builder.build())


def test_non_max_suppression() -> None:
    rng = np.random.default_rng(1)
    low = rng.uniform(0, 0.7, (30, 2))
    boxes = np.concatenate([low, low + rng.uniform(0.1, 0.3, (30, 2))], 1).astype(np.float32)
    operands = [X(boxes), X(rng.uniform(0, 1, 30).astype(np.float32)), I32(8), C(np.float32(0.3)), C(np.float32(0.4))]
    check_op("NON_MAX_SUPPRESSION_V4", operands, [Out(np.int32), Out(np.int32)])
    outs = [Out(np.int32), Out(np.float32), Out(np.int32)]
    check_op("NON_MAX_SUPPRESSION_V5", [*operands, C(np.float32(0))], outs)
