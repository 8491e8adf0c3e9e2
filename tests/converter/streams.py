"""Small streaming models as .tflite files: what devices run step by step, with the state in the file's variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.converter.frontends.tflite.builder import Builder, Quant, Tensor
from tests.converter.frontends.tflite.support import floats

__all__ = ["FRAME", "denoiser", "integer_lstm", "large_cell", "ring_buffer", "two_signatures", "wake_word"]

FRAME = 16
"""Values of one step."""


def wake_word(*, quantised: bool = False) -> bytes:
    """Two SVDF layers and a dense layer with Softmax: probabilities of four words, for a frame [1, FRAME].

    quantised: the frame and the probabilities are int8, the states int16.
    """
    return _integer_wake_word() if quantised else _float_wake_word()


def _float_wake_word() -> bytes:
    b = Builder()
    x = b.input("frame", (1, FRAME))
    for k, units in enumerate((12, 8)):
        width = FRAME if k == 0 else 12
        operands = [x, _const(b, units, width, seed=k), _const(b, units, 6, seed=10 + k)]
        operands += [_const(b, units, seed=20 + k), b.variable(f"memory{k}", (1, 6 * units))]
        x = b.op("SVDF", operands, (1, units), rank=1, fused_activation_function="RELU")
    dense = b.op("FULLY_CONNECTED", [x, _const(b, 4, 8, seed=30), _const(b, 4, seed=31)], (1, 4))
    y = b.op("SOFTMAX", [dense], (1, 4), beta=1.0)
    b.output(y)
    return b.build()


def _integer_wake_word() -> bytes:
    b = Builder()
    x = b.input("frame", (1, FRAME), "int8", quant=Quant(3 / 127, 5))
    for k, units in enumerate((12, 8)):
        width, line, out = FRAME if k == 0 else 12, Quant(128 / 32767), Quant(8 / 255, -128)
        features, by = _int8(floats(units, width, seed=k) * 0.5)
        time, over = _int8(floats(units, 6, seed=10 + k), np.int16)
        bias = np.rint(floats(units, seed=20 + k) / (line.scale * over.scale)).astype(np.int32)
        operands = [
            x, b.const(features, quant=by), b.const(time, quant=over),
            b.const(bias, quant=Quant(float(line.scale) * float(over.scale))),
            b.variable(f"memory{k}", (1, 6 * units), "int16", quant=line),
        ]  # fmt: skip
        options = {"rank": 1, "fused_activation_function": "RELU"}
        x = b.op("SVDF", operands, (1, units), "int8", quant=out, version=3, **options)
    weights, by = _int8(floats(4, 8, seed=30))
    scale = 8 / 255 * float(by.scale)
    bias = b.const(np.rint(floats(4, seed=31) / scale).astype(np.int32), quant=Quant(scale))
    dense = b.op("FULLY_CONNECTED", [x, b.const(weights, quant=by), bias], (1, 4), "int8", quant=Quant(0.1), version=4)
    b.output(b.op("SOFTMAX", [dense], (1, 4), "int8", quant=Quant(1 / 256, -128), version=2, beta=1.0))
    return b.build()


def denoiser() -> bytes:
    """A mask from two LSTM layers, whose state is in variable tensors, times the magnitudes [1, 1, FRAME]."""
    b = Builder()
    magnitudes = x = b.input("magnitudes", (1, 1, FRAME))
    for k in range(2):
        seed, units = 100 * k, 24
        width = FRAME if k == 0 else units
        operands: list[Tensor | None] = [x]
        operands += [_const(b, units, width, seed=seed + g) for g in range(4)]
        operands += [_const(b, units, units, seed=seed + 4 + g) for g in range(4)]
        operands += [None, None, None, *(_const(b, units, seed=seed + 20 + g) for g in range(4)), None, None]
        operands += [b.variable(f"layer{k}/h", (1, units)), b.variable(f"layer{k}/c", (1, units))]
        options = {"fused_activation_function": "TANH", "time_major": False}
        x = b.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (1, 1, units), **options)
    x = b.op("FULLY_CONNECTED", [x, _const(b, FRAME, 24, seed=300), None], (1, 1, FRAME), keep_num_dims=True)
    b.output(b.op("MUL", [b.op("LOGISTIC", [x], (1, 1, FRAME)), magnitudes], (1, 1, FRAME)))
    return b.build()


def integer_lstm(
    *,
    batch: int = 1,
    time: int = 1,
    cells: int = 12,
    projected: int = 0,
    coupled: bool = False,
    peephole: bool = False,
    clip: float = 0.0,
    time_major: bool = True,
    hidden_zero: int = -1,
    bias: bool = True,
    seed: int = 0,
    one_step: bool = False,
    uneven: bool = False,
) -> tuple[bytes, tuple[int, ...]]:
    """An LSTM with 8-bit weights and a 16-bit cell, and the shape of its int8 input, FRAME values at a time. one_step:
    the operator without a time axis. uneven: a file that lies about the size of one gate."""
    b, gates = Builder(), range(1 if coupled else 0, 4)
    shape: tuple[int, ...] = (time, batch, FRAME) if time_major else (batch, time, FRAME)
    shape = (batch, FRAME) if one_step else shape
    out, width = Quant(1 / 100, 3) if projected else Quant(1 / 128, hidden_zero), projected or cells
    entered, hidden = Quant(3 / 127, 5), Quant(1 / 128, hidden_zero)
    operands: list[Tensor | None] = [None] * 20
    operands[0] = b.input("frame", shape, "int8", quant=entered)

    def weights(slot: int, *size: int, dtype: type = np.int8) -> Quant:
        stored, by = _int8(floats(*size, seed=100 * seed + slot) * 0.5, dtype)
        operands[slot] = b.const(stored, quant=by)
        return by

    def biases(slot: int, size: int, scale: float) -> None:
        real = floats(size, seed=100 * seed + slot) * 0.3
        operands[slot] = b.const(np.rint(real / scale).astype(np.int32), quant=Quant(scale))

    for gate in gates:
        by = weights(1 + gate, cells, FRAME)
        weights(5 + gate, cells, width + (uneven and gate == 2))
        biases(12 + gate, cells, float(entered.scale) * float(by.scale))
        if peephole and gate != 2:
            weights({0: 9, 1: 10, 3: 11}[gate], cells, dtype=np.int16)
    if projected:
        by = weights(16, projected, cells)
        if bias:
            biases(17, projected, float(by.scale) * float(hidden.scale))
    operands[18] = b.variable("h", (batch, width), "int8", quant=out)
    operands[19] = b.variable("c", (batch, cells), "int16", quant=Quant(2.0**-11))
    inside = [b.tensor("", (), "int16", quant=Quant(2.0**-12)) for _ in range(4)]
    options: dict[str, Any] = {"fused_activation_function": "TANH", "cell_clip": clip, "proj_clip": clip}
    options |= {"kernel_type": "FULL"} if one_step else {"time_major": time_major}
    options["intermediates"] = [*inside, b.tensor("", (), "int8", quant=hidden)]
    name = "LSTM" if one_step else "UNIDIRECTIONAL_SEQUENCE_LSTM"
    b.output(b.op(name, operands, (*shape[:-1], width), "int8", quant=out, **options))
    return b.build(), shape


def ring_buffer(*, initial: float = 0.0) -> bytes:
    """A convolution over the last four frames, which are a resource variable [1, 4, FRAME] that starts as `initial`."""
    b = Builder()
    x = b.input("frame", (1, 1, FRAME))
    handle = b.op("VAR_HANDLE", [], (), "resource", shared_name="stream/ring")
    first = b.subgraph("init")
    own = first.op("VAR_HANDLE", [], (), "resource", shared_name="stream/ring")
    first.node("ASSIGN_VARIABLE", [own, first.const(np.full((1, 4, FRAME), initial, np.float32))], [])
    ring = b.op("READ_VARIABLE", [handle], (1, 4, FRAME), "float32")
    begin, end, strides = (b.const(np.int32(v)) for v in ([0, 1, 0], [0, 0, 0], [1, 1, 1]))
    older = b.op("STRIDED_SLICE", [ring, begin, end, strides], (1, 3, FRAME), begin_mask=5, end_mask=7)
    ring = b.op("CONCATENATION", [older, x], (1, 4, FRAME), axis=1)
    b.node("ASSIGN_VARIABLE", [handle, ring], [])
    image = b.op("RESHAPE", [ring, b.const(np.int32([1, 4, 1, FRAME]))], (1, 4, 1, FRAME))
    options = {"padding": "VALID", "stride_w": 1, "stride_h": 1}
    y = b.op("CONV_2D", [image, _const(b, 8, 4, 1, FRAME, seed=5), _const(b, 8, seed=6)], (1, 1, 1, 8), **options)
    b.output(b.op("TANH", [y], (1, 1, 1, 8)))
    b.node("CALL_ONCE", [], [], init_subgraph_index=1)
    b.table.operators.insert(0, b.table.operators.pop())
    return b.build()


def two_signatures() -> bytes:
    """ "add" adds its input to a variable, "read" returns the variable: a state that signatures share."""
    b = Builder()
    x = b.input("x", (3,))
    handle = b.op("VAR_HANDLE", [], (), "resource", shared_name="sum")
    total = b.op("ADD", [b.op("READ_VARIABLE", [handle], (3,), "float32"), x], (3,), "float32")
    b.node("ASSIGN_VARIABLE", [handle, total], [])
    b.output(total)
    other = b.subgraph("read")
    scale = other.input("scale", (1,))
    held = other.op("VAR_HANDLE", [], (), "resource", shared_name="sum")
    y = other.op("MUL", [other.op("READ_VARIABLE", [held], (3,), "float32"), scale], (3,), "float32")
    other.output(y)
    b.signature("add", {"x": x}, {"total": total})
    b.signature("read", {"scale": scale}, {"scaled": y}, other)
    return b.build()


def _const(b: Builder, *shape: int, seed: int) -> Tensor:
    return b.const(floats(*shape, seed=seed) * 0.5)


def _int8(real: np.ndarray, dtype: type = np.int8) -> tuple[np.ndarray, Quant]:
    quant = Quant(float(np.abs(real).max()) / np.iinfo(dtype).max)
    return quant.store(real, dtype), quant


def large_cell() -> bytes:
    """An LSTM that ONNX's own cannot express: projection, peepholes, layer normalisation, a clipped cell."""
    b = Builder()
    x = b.input("frame", (1, 2, FRAME))
    units, out = 12, 8
    operands: list[Tensor | None] = [x]
    operands += [_const(b, units, FRAME, seed=g) for g in range(4)]
    operands += [_const(b, units, out, seed=4 + g) for g in range(4)]
    operands += [_const(b, units, seed=8 + g) for g in range(3)]
    operands += [_const(b, units, seed=11 + g) for g in range(4)]
    operands += [_const(b, out, units, seed=16), None, b.variable("h", (1, out)), b.variable("c", (1, units))]
    operands += [_const(b, units, seed=20 + g) for g in range(4)]
    options = {"fused_activation_function": "TANH", "time_major": False, "cell_clip": 2.0, "proj_clip": 1.0}
    b.output(b.op("UNIDIRECTIONAL_SEQUENCE_LSTM", operands, (1, 2, out), **options))
    return b.build()
