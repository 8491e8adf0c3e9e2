"""LSTM, GRU and RNN.

One product over all times computes the input's share of the gates. Then either one native step per time or one for the
whole sequence follows. With a step per time, workers share a cell's columns at the cost of a barrier between times:
worthwhile from about 2 µs of work per time. In the whole-sequence form, workers share samples and directions; with a
single one there is nothing to share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array
from lite_runtime.ops._axes import FLOATS, attr_float, attr_int, expect
from lite_runtime.ops._checks import choice
from lite_runtime.ops.registry import Binder, Inference, NoKernel, Operand, Spec, bind, infer
from lite_runtime.reference.quantize import SCHEMES

__all__: list[str] = []


class Cell(NamedTuple):
    """The properties in which the operators differ. `defaults`: the activations of one direction."""

    gates: int
    defaults: tuple[str, ...]
    kernel: str


CELLS: dict[str, Cell] = {
    "RNN": Cell(1, ("tanh",), "recurrent.f32_rnn"),
    "GRU": Cell(3, ("sigmoid", "tanh"), "recurrent.f32_gru"),
    "LSTM": Cell(4, ("sigmoid", "tanh", "tanh"), "recurrent.f32_lstm"),
}
_SCALES: Mapping[str, int] = {"LSTM": 8, "GRU": 6}
"""The input that holds the scales of 8-bit recurrent weights."""
_NONE = 9
_ACTIVATIONS = frozenset(
    "affine elu hardsigmoid leakyrelu relu scaledtanh sigmoid softplus softsign tanh thresholdedrelu".split()
)
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}

STEP, RUN = 0, 1
BOTH, GATES_ONLY, CANDIDATE_ONLY = 0, 1, 2
"""Modes and GRU variants of kernels/recurrent.py."""
_WORTH_SHARING = 1 << 15
"""Multiplications per time from which workers share its columns: about 2 µs for one worker."""
_MOST_STEPS = 256


# -- what comes out ---------------------------------------------------------------------------------------------------


def _shaped(n: Inference, i: int, name: str, dtype: str, shape: tuple[int, ...], optional: bool = True) -> None:
    if optional and not n.has(i):
        return
    spec = expect(n, i, {dtype}, name)
    if spec.shape != shape:
        raise n.error(f"expected {name} of shape {list(shape)}, got {list(spec.shape)}")


def _activations(n: Inference, wanted: int) -> None:
    names = n.attr("activations")
    if names is None:
        return
    if isinstance(names, str) or len(names) < wanted or any(not isinstance(name, str) for name in names):
        raise n.error(f"expected {wanted} activations, got {names!r}")
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            raise n.error(f"expected activations of {', '.join(sorted(_ACTIVATIONS))}, got {name!r}")


@infer(*CELLS)
def _infer_recurrent(n: Inference) -> tuple[Spec, ...]:
    gates, defaults, _ = CELLS[n.node.op]
    x = expect(n, 0, FLOATS, "X")
    narrow = n.has(_SCALES.get(n.node.op, _NONE))
    w, r = expect(n, 1, {x.dtype}, "W"), expect(n, 2, {"int8" if narrow else x.dtype}, "R")
    layout = attr_int(n, "layout", 0, (0, 1))
    direction = n.attr("direction", "forward")
    if direction not in _DIRECTIONS:
        raise n.error(f"expected direction forward, reverse or bidirectional, got {direction!r}")
    count = _DIRECTIONS[direction]
    if len(x.shape) != 3 or len(w.shape) != 3 or len(r.shape) != 3:
        raise n.error(f"expected X, W and R of rank 3, got {list(x.shape)}, {list(w.shape)}, {list(r.shape)}")
    time, batch = (x.shape[1], x.shape[0]) if layout else x.shape[:2]
    hidden = attr_int(n, "hidden_size", r.shape[2])
    if hidden < 1:
        raise n.error(f"expected hidden_size above 0, got {hidden}")
    _shaped(n, 1, "W", x.dtype, (count, gates * hidden, x.shape[2]), optional=False)
    _shaped(n, 2, "R", r.dtype, (count, gates * hidden, hidden), optional=False)
    _shaped(n, 3, "B", x.dtype, (count, 2 * gates * hidden))
    _shaped(n, 4, "sequence_lens", "int32", (batch,))
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    _shaped(n, 5, "initial_h", x.dtype, state)
    _activations(n, count * len(defaults))
    if narrow:
        block = attr_int(n, "block_size", 0)
        if block < 1:
            raise n.error(f"expected block_size above 0 for R of int8, got {block}")
        _shaped(n, _SCALES[n.node.op], "scales", "float32", (count, gates * hidden, -(-hidden // block)))
    elif n.attr("block_size") is not None:
        raise n.error("block_size has no meaning without scales")
    if n.attr("clip") is not None and not attr_float(n, "clip", 1.0) > 0:
        raise n.error(f"expected clip above 0, got {n.attr('clip')}")
    for name in ("input_forget", "linear_before_reset"):
        attr_int(n, name, 0, (0, 1))
    y = Spec(x.dtype, (batch, time, count, hidden) if layout else (time, count, batch, hidden))
    if n.node.op != "LSTM":
        return y, Spec(x.dtype, state)
    if choice(n, "rounding", "", SCHEMES) and not narrow:
        raise n.error("expected scales with a rounding, got none")
    _shaped(n, 6, "initial_c", x.dtype, state)
    _shaped(n, 7, "P", x.dtype, (count, 3 * hidden))
    return y, Spec(x.dtype, state), Spec(x.dtype, state)


# -- weights in the order the kernels read them -----------------------------------------------------------------------


def _panels(array: Array, gates: int, lanes: int) -> Array:
    """(directions, gates * hidden, ...) -> (directions, panels, gates, lanes, ...), zero-padded after the last unit."""
    directions, hidden, rest = array.shape[0], array.shape[1] // gates, array.shape[2:]
    panels = -(-hidden // lanes)
    wide = np.zeros((directions, gates, panels * lanes, *rest), np.float32)
    wide[:, :, :hidden] = array.reshape(directions, gates, hidden, *rest)
    return wide.reshape(directions, gates, panels, lanes, *rest).swapaxes(1, 2)


def _columns(array: Array, lanes: int) -> Array:
    """(columns, ...) with columns padded to whole blocks of 4 vectors: (blocks, 4 * lanes, ...)."""
    block = 4 * lanes
    padded = np.zeros((-(-array.shape[0] // block) * block, *array.shape[1:]), np.float32)
    padded[: array.shape[0]] = array
    return padded.reshape(-1, block, *array.shape[1:])


def pack_input(w: Array, gates: int, lanes: int) -> Array:
    """W for `f32_project`: [blocks][inputs][4 * lanes], columns ordered direction, panel, gate, lane."""
    columns = _panels(w, gates, lanes).reshape(-1, w.shape[2])
    return np.ascontiguousarray(_columns(columns, lanes).swapaxes(1, 2))


def pack_recurrent(r: Array, gates: int, lanes: int) -> Array:
    """R for the cells: [directions][panels][hidden][gates][lanes]."""
    return np.ascontiguousarray(np.moveaxis(_panels(r, gates, lanes), -1, 2))


def spread(r: Array, scales: Array, block: int) -> Array:
    """R of int8 as float32."""
    return np.asarray(r * np.repeat(scales, block, -1)[..., : r.shape[-1]], np.float32)


def pack_bytes(r: Array, scales: Array, block: int, gates: int, lanes: int) -> Array:
    """R of int8 (directions, gates * hidden, hidden) as bytes: by direction, panel and block of `block` weights (a
    multiple of 4) the scales, corrections and words of kernels/qrecurrent.py."""
    blocks = scales.shape[-1]
    wide = np.zeros((*r.shape[:2], blocks * block), np.int8)
    wide[..., : r.shape[-1]] = r
    weights = _panels(wide, gates, lanes).astype(np.int8)  # (directions, panels, gates, lanes, weights)
    weights = weights.reshape(*weights.shape[:4], blocks, block // 4, 4)
    sums = weights.sum((-2, -1), dtype=np.int32) * np.int32(-32768)
    words = weights.transpose(0, 1, 4, 5, 2, 3, 6)  # (directions, panels, blocks, words, gates, lanes, 4)
    parts = (np.moveaxis(_panels(scales, gates, lanes), -1, 2), np.moveaxis(sums, -1, 2), words)
    flat = [np.ascontiguousarray(part).view(np.uint8).reshape(*words.shape[:3], -1) for part in parts]
    return np.concatenate(flat, -1)


def pack_bias(b: Array, gates: int, lanes: int, late: bool) -> Array:
    """Both biases of B added, for `f32_project`; late: the candidate's recurrent bias is left to the cell."""
    halves = b.reshape(b.shape[0], 2, gates, -1)
    total = halves[:, 0] + halves[:, 1]
    if late:
        total[:, 2] = halves[:, 0, 2]
    return _columns(_panels(total.reshape(b.shape[0], -1), gates, lanes).reshape(-1), lanes)


def pack_late_bias(b: Array, lanes: int) -> Array:
    """The candidate's recurrent bias: [directions][panels][lanes]."""
    return np.ascontiguousarray(_panels(b.reshape(b.shape[0], 2, 3, -1)[:, 1, 2], 1, lanes))


# -- steps ------------------------------------------------------------------------------------------------------------


def _constant(b: Binder, i: int) -> Operand | None:
    """Input `i`, which must be a constant or left out."""
    operand = b.inputs[i] if i < len(b.inputs) else None
    if operand is not None and operand.value is None:
        raise NoKernel(f"input {i} is computed")
    return operand


def _variant(b: Binder, count: int) -> int:
    """The kernel's VARIANT; NoKernel for activations it does not support."""
    op, given = b.node.op, b.attr("activations")
    defaults = CELLS[op].defaults
    wanted = tuple(name.lower() for name in given)[: count * len(defaults)] if given else defaults * count
    if op == "RNN" and wanted == ("relu",) * count:
        return 1
    if wanted != defaults * count:
        raise NoKernel("activations other than the defaults")
    if op == "LSTM":
        return int(b.attr("input_forget", 0))
    return GATES_ONLY if op == "GRU" and not b.attr("linear_before_reset", 0) else BOTH


if TYPE_CHECKING:

    class _Strides(TypedDict):
        """The strides with which kernels access X, Y and the states."""

        x_time: int
        x_batch: int
        y_time: int
        y_direction: int
        y_batch: int
        i_direction: int
        i_batch: int


def _strides(layout: int, time: int, count: int, batch: int, hidden: int) -> _Strides:
    """The strides for either layout."""
    if layout:
        return {
            "x_time": 1,
            "x_batch": time,
            "y_time": count * hidden,
            "y_direction": hidden,
            "y_batch": time * count * hidden,
            "i_direction": hidden,
            "i_batch": count * hidden,
        }
    return {
        "x_time": batch,
        "x_batch": 1,
        "y_time": count * batch * hidden,
        "y_direction": batch * hidden,
        "y_batch": hidden,
        "i_direction": batch * hidden,
        "i_batch": hidden,
    }


_LONGEST_BLOCK = 508
"""Number of weights whose sum of products with 16-bit numbers fits 32 bits."""
_MOST_BYTES, _MOST_SMALL = 2048, 256
"""Greatest number of hidden units that kernels/qrecurrent.py supports; the same where stacks are small."""


class _Cells(NamedTuple):
    """Where `packing.f32_recurrent` reads weights, and how it orders them; steps in floats."""

    directions: int
    gates: int
    units: int
    inner: int
    vectors: int
    """Columns of a block."""
    blocks: int
    gate_step: int
    unit_step: int
    inner_step: int
    start: int = 0
    second: int = 0
    alone: int = -1


def _pack(b: Binder, source: Operand, c: _Cells) -> Operand:
    """Computed weights, direction first, packed in the order of the cells."""
    if source.dtype != "float32":
        raise NoKernel("weights of another type")
    packed = b.scratch("float32", (c.blocks, c.inner, c.vectors * b.lanes))
    b.emit(
        steps.CellWeights(
            w=source,
            packed=packed,
            directions=c.directions,
            gates=c.gates,
            units=c.units,
            inner=c.inner,
            block=c.vectors * b.lanes,
            blocks=c.blocks,
            start=4 * c.start,
            direction_step=4 * (source.size // c.directions),
            gate_step=4 * c.gate_step,
            unit_step=4 * c.unit_step,
            inner_step=4 * c.inner_step,
            second=4 * c.second,
            alone=c.alone,
        )
    )
    return packed


def _project(b: Binder, x: Operand, gates: int, count: int, hidden: int, late: bool) -> tuple[Operand, int]:
    """Emit the input's share of the gates; returns it and the number of floats in a row."""
    w, bias = b.inputs[1], _optional(b, 3)
    assert w is not None
    lanes, rows, inputs = b.lanes, x.shape[0] * x.shape[1], x.shape[2]
    blocks = -(-count * -(-hidden // lanes) * gates // 4)
    if w.value is None:
        packed = _pack(b, w, _Cells(count, gates, hidden, inputs, 4, blocks, hidden * inputs, inputs, 1))
    else:
        packed = b.packed(w, f"recurrent input {gates} {lanes}", lambda value: pack_input(value, gates, lanes))
    if bias is None:
        shift = b.constant(np.zeros((blocks, 4 * lanes), np.float32))
    elif bias.value is None:
        both = _Cells(count, gates, hidden, 1, 4, blocks, hidden, 1, 0, second=gates * hidden, alone=2 if late else -1)
        shift = _pack(b, bias, both)
    else:
        layout = f"recurrent bias {gates} {lanes} {late}"
        shift = b.packed(bias, layout, lambda value: pack_bias(value, gates, lanes, late))
    out = b.scratch("float32", (rows, blocks * 4 * lanes))
    b.emit(steps.Project(x=x, w=packed, bias=shift, out=out, rows=rows, inputs=inputs, panels=blocks))
    return out, blocks * 4 * lanes


def _extra(b: Binder, late: bool) -> Operand | None:
    """The peepholes, or the bias inside a GRU's reset product."""
    lanes = b.lanes
    if b.node.op == "LSTM":
        holes = _constant(b, 7)
        return holes and b.packed(
            holes, f"peepholes {lanes}", lambda value: np.ascontiguousarray(_panels(value, 3, lanes))
        )
    bias = _optional(b, 3)
    if bias is None or not late:
        return None
    if bias.value is None:
        count, hidden = bias.shape[0], bias.shape[1] // 6
        panels = count * -(-hidden // lanes)
        return _pack(b, bias, _Cells(count, 1, hidden, 1, 1, panels, 0, 1, 0, start=5 * hidden))
    return b.packed(bias, f"late bias {lanes}", lambda value: pack_late_bias(value, lanes))


def _optional(b: Binder, i: int) -> Operand | None:
    return b.inputs[i] if i < len(b.inputs) else None


@bind(*CELLS)
def _bind_recurrent(b: Binder) -> None:
    op = b.node.op
    gates, _, kernel = CELLS[op]
    x, r = b.inputs[0], b.inputs[2]
    if x is None or r is None or x.dtype != "float32":
        raise NoKernel("another type than float32")
    layout, count, hidden = b.attr("layout", 0), r.shape[0], r.shape[2]
    time, batch = (x.shape[1], x.shape[0]) if layout else x.shape[:2]
    variant = _variant(b, count)
    late = op == "GRU" and variant == BOTH
    clip = b.attr("clip")
    shares, row = _project(b, x, gates, count, hidden, late)
    rounding = b.attr("rounding", "")
    kernel, recurrent, more = _weights(b, r, kernel, gates)
    if rounding and more is None:
        raise NoKernel(f"h rounded to bytes, of more than {_most_bytes(b)} units")
    results = [*b.outputs, None, None, None][:3]
    strides = _strides(layout, time, count, batch, hidden)
    history = results[0]
    if history is None:
        history = b.scratch("float32", (time, count, batch, hidden))
        plain = _strides(0, time, count, batch, hidden)
        for name in ("y_time", "y_direction", "y_batch"):
            strides[name] = plain[name]
    state, s_direction, s_batch = _state(b, results[2], count, batch, hidden, strides)
    words: _Words = {
        "mode": RUN,
        "time": 0,
        "times": time,
        "batch": batch,
        "hidden": hidden,
        "directions": count,
        "backwards": int(b.attr("direction", "forward") == "reverse"),
        "row": row,
        "x_time": strides["x_time"],
        "x_batch": strides["x_batch"],
        "y_time": strides["y_time"],
        "y_direction": strides["y_direction"],
        "y_batch": strides["y_batch"],
        "i_direction": strides["i_direction"],
        "i_batch": strides["i_batch"],
        "s_direction": s_direction,
        "s_batch": s_batch,
        "variant": variant,
        "clip": math.inf if clip is None else float(clip),
        "lengths": _optional(b, 4),
        "initial_h": _optional(b, 5),
        "initial_c": _optional(b, 6) if op == "LSTM" else None,
        "history": history,
        "state": state,
    }
    extra = _extra(b, late)

    def cells(words: _Words) -> steps.Cells:
        if more is None:
            return steps.FloatCells(gates=shares, weights=recurrent, extra=extra, **words)
        blocks, dwords = more
        scheme = 1 + SCHEMES.index(rounding) if rounding else 0
        narrow = {"blocks": blocks, "dwords": dwords, "scheme": scheme}
        return steps.ByteCells(gates=shares, weights=recurrent, extra=extra, **narrow, **words)

    worth = _WORTH_SHARING << 2 if more is not None else _WORTH_SHARING
    if time == 1 or (time <= _MOST_STEPS and batch * gates * hidden * hidden >= worth):
        halves = (GATES_ONLY, CANDIDATE_ONLY) if op == "GRU" and variant == GATES_ONLY else (variant,)
        for t in range(time):
            for half in halves:
                b.emit(cells({**words, "mode": STEP, "time": t, "variant": half}), kernel=kernel)
    elif time:
        b.emit(cells(words), kernel=kernel, parallel=count * batch > 1)
    if results[1] is not None or results[2] is not None:
        final = steps.FinalStates(final_h=results[1], final_c=results[2], extra=None, **words)
        b.emit(final, parallel=False)


if TYPE_CHECKING:

    class _Words(TypedDict):
        """The words that all steps over cells share."""

        mode: int
        time: int
        times: int
        batch: int
        hidden: int
        directions: int
        backwards: int
        row: int
        x_time: int
        x_batch: int
        y_time: int
        y_direction: int
        y_batch: int
        i_direction: int
        i_batch: int
        s_direction: int
        s_batch: int
        variant: int
        clip: float
        lengths: Operand | None
        initial_h: Operand | None
        initial_c: Operand | None
        history: Operand
        state: Operand | None


def _most_bytes(b: Binder) -> int:
    return _MOST_SMALL if b.target.shape.small else _MOST_BYTES


def _weights(b: Binder, r: Operand, kernel: str, gates: int) -> tuple[str, Operand, tuple[int, int] | None]:
    """The cells' kernel, its recurrent weights, and for 8-bit weights the number of blocks and the dwords of each."""
    lanes, scales = b.lanes, _constant(b, _SCALES.get(b.node.op, _NONE))
    if r.value is None:
        count, hidden = r.shape[0], r.shape[2]
        panels = count * -(-hidden // lanes)
        cells = _Cells(count, gates, hidden, hidden, gates, panels, hidden * hidden, hidden, 1)
        return kernel, _pack(b, r, cells), None
    if scales is None:
        packed = b.packed(r, f"recurrent {gates} {lanes}", lambda value: pack_recurrent(value, gates, lanes))
        return kernel, packed, None
    assert scales.value is not None
    scale, block, hidden = scales.value, b.attr("block_size", 0), r.shape[2]
    if scale.shape[-1] == 1:
        block = -(-hidden // 4) * 4
    if b.attr("rounding", "") and block > _LONGEST_BLOCK:
        scale, block = np.repeat(scale, -(-hidden // _LONGEST_BLOCK), -1), _LONGEST_BLOCK
    if block % 4 == 0 and block <= _LONGEST_BLOCK and block * scale.shape[-1] <= _most_bytes(b):
        layout = f"recurrent bytes {gates} {block} {lanes}"
        packed = b.packed(r, layout, lambda value: pack_bytes(value, scale, block, gates, lanes))
        return f"qrecurrent.i8_{b.node.op.lower()}", packed, (scale.shape[-1], block // 4)
    layout = f"recurrent {gates} {lanes}"
    return kernel, b.packed(r, layout, lambda value: pack_recurrent(spread(value, scale, block), gates, lanes)), None


def _state(
    b: Binder, final_c: Operand | None, count: int, batch: int, hidden: int, strides: _Strides
) -> tuple[Operand | None, int, int]:
    """Memory for cell state that is not an output, and its strides between directions and between samples; c is kept
    in the memory of the final c if that output is wanted."""
    if b.node.op == "LSTM":
        if final_c is not None:
            return final_c, strides["i_direction"], strides["i_batch"]
        return b.scratch("float32", (count, batch, hidden)), batch * hidden, hidden
    if b.node.op == "GRU":
        return b.scratch("float32", (count, batch, 2 * hidden)), batch * 2 * hidden, 2 * hidden
    return None, batch * 2 * hidden, 2 * hidden
