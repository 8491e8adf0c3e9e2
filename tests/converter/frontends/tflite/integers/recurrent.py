"""Recurrent cells: of real numbers by 8-bit weights ("hybrid"), and of integers. States are variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.converter.frontends.tflite.builder import Quant, Tensor
from tests.converter.frontends.tflite.integers.drafts import Draft, case
from tests.converter.frontends.tflite.integers.products import HYBRID

__all__: list[str] = []

_HYBRID = HYBRID[:2]


def _entry(d: Draft, sequence: bool, batch: int, time: int, width: int, **kind: Any) -> tuple[Tensor, dict[str, Any]]:
    """The input, and the option that says which axis is time."""
    if not sequence:
        return d.entry((batch, width), **kind), {}
    first = d.chance()
    return d.entry((time, batch, width) if first else (batch, time, width), **kind), {"time_major": first}


# of real numbers


def _bytes(d: Draft, *shape: int) -> Tensor:
    return d.const(d.weights(shape), "int8", Quant(float(np.float32(d.rng.uniform(0.002, 0.01)))))


def _reals(d: Draft, *shape: int) -> Tensor:
    return d.const((d.rng.normal(size=shape) * 0.3).astype(np.float32))


def _asymmetric(types: str) -> dict[str, bool]:
    return {"asymmetric_quantize_inputs": "asymmetric" in types}


@case("RNN UNIDIRECTIONAL_SEQUENCE_RNN", *_HYBRID)
def rnn(d: Draft, op: str, types: str) -> None:
    batch, width, units = d.some(1, 4), d.some(1, 40), d.some(1, 40)
    x, options = _entry(d, op != "RNN", batch, d.some(1, 5), width)
    operands = [x, _bytes(d, units, width), _bytes(d, units, units), _reals(d, units)]
    operands.append(d.builder.variable("h", (batch, units)))
    options["fused_activation_function"] = str(d.rng.choice(["TANH", "RELU"]))
    d.result(op, operands, **options, **_asymmetric(types))


@case("SVDF", *_HYBRID)
def svdf(d: Draft, op: str, types: str) -> None:
    batch, width, units, memory, rank = (d.some(1, n) for n in (4, 30, 20, 10, 3))
    filters = units * rank
    operands = [
        d.entry((batch, width)),
        _bytes(d, filters, width),
        _bytes(d, filters, memory),
        _reals(d, units) if d.chance() else None,
        d.builder.variable("line", (batch, filters * memory)),
    ]
    activation = {"fused_activation_function": str(d.rng.choice(["NONE", "RELU"]))}
    d.result(op, operands, rank=rank, **activation, **_asymmetric(types))


_FANCY = ("", ", layer normalisation", ", peepholes, projection")


@case("LSTM UNIDIRECTIONAL_SEQUENCE_LSTM", *(kind + more for kind in _HYBRID for more in _FANCY))
def lstm(d: Draft, op: str, types: str) -> None:
    batch, width, units = d.some(1, 4), d.some(1, 40), d.some(1, 30)
    projected = d.some(1, 20) if "projection" in types else 0
    operands: list[Tensor | None] = [None] * (24 if "normalisation" in types else 20)
    for gate in range(int(d.chance(0.3)), 4):
        operands[1 + gate], operands[5 + gate] = _bytes(d, units, width), _bytes(d, units, projected or units)
        operands[12 + gate] = _reals(d, units)
        if "normalisation" in types:
            operands[20 + gate] = _reals(d, units)
        if "peepholes" in types and gate != 2:
            operands[9 + min(gate, 2)] = _bytes(d, units)
    if projected:
        operands[16] = _bytes(d, projected, units)
        operands[17] = _reals(d, projected) if d.chance() else None
    operands[0], options = _entry(d, op != "LSTM", batch, d.some(1, 5), width)
    operands[18] = d.builder.variable("h", (batch, projected or units))
    operands[19] = d.builder.variable("c", (batch, units))
    if op == "LSTM":
        options["kernel_type"] = "FULL"
    options |= {"fused_activation_function": "TANH", "cell_clip": float(d.rng.choice([0.0, 2.0])), "proj_clip": 0.0}
    d.result(op, operands, **options, **_asymmetric(types))


@case("BIDIRECTIONAL_SEQUENCE_LSTM", *_HYBRID)
def bidirectional_lstm(d: Draft, op: str, types: str) -> None:
    """Time first: with the batch first and merged outputs LiteRT reads beyond its states."""
    batch, time, width, units = d.some(1, 4), d.some(1, 5), d.some(1, 40), d.some(1, 30)
    operands: list[Tensor | None] = [d.entry((time, batch, width))]
    for _ in range(2):
        operands += [_bytes(d, units, width) for _ in range(4)] + [_bytes(d, units, units) for _ in range(4)]
        operands += [*[None] * 3, *(_reals(d, units) for _ in range(4)), None, None]
    operands += [d.builder.variable(f"state {k}", (batch, units)) for k in range(4)] + [None] * 9
    options = {"fused_activation_function": "TANH", "time_major": True, "merge_outputs": True}
    d.result(op, operands, cell_clip=0.0, proj_clip=0.0, **options, **_asymmetric(types))


# of integers


@case("LSTM", "uint8, one weight matrix")
def basic_lstm(d: Draft, op: str, types: str) -> None:
    batch, width, units = d.some(1, 4), 8 * d.some(1, 5), 8 * d.some(1, 4)
    q, cell = Quant(1 / 128, 128), Quant(16 / 32768)
    by = Quant(float(np.float32(d.rng.uniform(0.002, 0.02))), d.some(1, 255))
    bias = d.rng.integers(-1000, 1000, 4 * units).astype(np.int32)
    operands = [
        d.entry((batch, width), "uint8", q),
        d.entry((batch, units), "uint8", q),
        d.const(d.numbers((4 * units, units + width), "uint8"), "uint8", by),
        d.const(bias, quant=Quant(float(np.float32(by.scale / 128)))),
        d.entry((batch, units), "int16", cell),
    ]
    kinds = [("uint8", q), ("int16", cell), ("uint8", q), ("int16", cell)]
    d.results(op, operands, kinds, kernel_type="BASIC", fused_activation_function="TANH")


def _stored(d: Draft, *shape: int, dtype: type = np.int8) -> tuple[Tensor, float]:
    """Random numbers that fill the type, and their scale."""
    real = d.rng.normal(size=shape) * 0.5
    quant = Quant(float(np.float32(np.abs(real).max() / np.iinfo(dtype).max)))
    return d.const(quant.store(real, dtype), quant=quant), float(quant.scale)


_CELLS = (
    *("", "layer normalisation", "peepholes", "projection", "layer normalisation, peepholes"),
    *("layer normalisation, projection", "peepholes, projection", "layer normalisation, peepholes, projection"),
)


@case("LSTM UNIDIRECTIONAL_SEQUENCE_LSTM", *(", ".join(("int8, 16-bit cell", *([m] if m else []))) for m in _CELLS))
def integer_lstm(d: Draft, op: str, types: str) -> None:
    batch, width, units = d.some(1, 4), d.some(1, 30), d.some(2, 30)
    norm, projected = "normalisation" in types, d.some(1, 20) if "projection" in types else 0
    if "peepholes" in types:
        projected = min(projected, units)  # LiteRT reads beyond the weights of more outputs than cells
    x = Quant(float(np.float32(d.rng.uniform(0.01, 0.05))), d.some(-128, 128))
    hidden = Quant(1 / 128, int(d.rng.choice([d.some(-20, 20), d.some(-20, 20), -128, 127])))
    out = Quant(float(np.float32(d.rng.uniform(0.005, 0.02))), d.some(-20, 20)) if projected else hidden
    operands: list[Tensor | None] = [None] * (24 if norm else 20)
    for gate in range(int(d.chance(0.3)), 4):
        operands[1 + gate], scale = _stored(d, units, width)
        operands[5 + gate], _ = _stored(d, units, projected or units)
        step = float(np.float32(x.scale) * np.float32(scale))
        if norm:
            operands[20 + gate], scale = _stored(d, units, dtype=np.int16)
            step = scale * 2.0**-10
        if "peepholes" in types and gate != 2:
            operands[9 + min(gate, 2)], _ = _stored(d, units, dtype=np.int16)
        operands[12 + gate] = d.const(
            np.rint(d.rng.normal(size=units) * 0.3 / step).astype(np.int32), quant=Quant(step)
        )
    if projected:
        operands[16], scale = _stored(d, projected, units)
        step = scale * float(hidden.scale)
        bias = np.rint(d.rng.normal(size=projected) * 0.3 / step).astype(np.int32)
        operands[17] = d.const(bias, quant=Quant(step)) if d.chance() else None
    operands[0], options = _entry(d, op != "LSTM", batch, d.some(1, 5), width, dtype="int8", quant=x)
    operands[18] = d.builder.variable("h", (batch, projected or units), "int8", quant=out)
    operands[19] = d.builder.variable("c", (batch, units), "int16", quant=Quant(2.0 ** -d.some(9, 13)))
    gates = [Quant(float(np.float32(d.rng.uniform(0.5, 2) / 4096)) if norm else 2.0**-12) for _ in range(4)]
    inner = [d.builder.tensor("", (), "int16", quant=q) for q in gates]
    if op == "LSTM":
        options["kernel_type"] = "FULL"
    options |= {"cell_clip": float(d.rng.choice([0.0, 2.0])), "proj_clip": float(d.rng.choice([0.0, 1.0]))}
    options["intermediates"] = [*inner, d.builder.tensor("", (), "int8", quant=hidden)]
    d.result(op, operands, "int8", out, fused_activation_function="TANH", **options)


@case("SVDF", "int8, 16-bit state")
def integer_svdf(d: Draft, op: str, types: str) -> None:
    batch, width, units, memory, rank = (d.some(1, n) for n in (4, 14, 14, 14, 3))
    filters = units * rank
    x, by, over = d.quant("int8", 0.03), Quant(0.01), Quant(float(np.float32(d.rng.uniform(1e-5, 1e-4))))
    line = Quant(float(np.float32(d.rng.uniform(2e-4, 9e-4))))
    bias = d.rng.integers(-(1 << 18), 1 << 18, units).astype(np.int32)
    operands = [
        d.entry((batch, width), "int8", x),
        d.const(d.weights((filters, width)), "int8", by),
        d.const(d.numbers((filters, memory), "int16"), "int16", over),
        d.const(bias, quant=Quant(1e-8)) if d.chance() else None,
        d.builder.variable("line", (batch, memory * filters), "int16", quant=line),
    ]
    y = Quant(float(np.float32(d.rng.uniform(0.01, 0.1))), -128)
    d.result(op, operands, "int8", y, rank=rank, fused_activation_function="RELU")
