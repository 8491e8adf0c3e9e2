"""A network over windows of signals, as several benchmarks train it: its second output is what the last layer reads."""

from __future__ import annotations

import onnx_ir as ir
import optax

import msedge
from cloud.zoo import window_cnn
from lite_runtime.graph import Array

__all__ = ["trained"]

_STEPS, _BATCH, _RATE = 1200, 64, 2e-3


def trained(x: Array, y: Array, classes: int, seed: int, *, kernel: int, dropout: float = 0.0) -> ir.Model:
    """`cloud.zoo.window_cnn` after 1,200 steps on x (n, channels, 1, steps), y (n,): outputs `logits`, and what the
    last layer reads, before dropout."""
    network = window_cnn(x.shape[1:], classes, seed, kernel=kernel, dropout=dropout)
    trainer = msedge.Trainer(network, seed=seed, optimizer=optax.adam(optax.cosine_decay_schedule(_RATE, _STEPS)))
    trainer.fit((x, y), max(1, round(_STEPS * _BATCH / len(x))), _BATCH)
    model = trainer.export()
    read = next(node for node in model.graph if node.name == "head").inputs[0]
    assert read is not None
    before = read.producer()
    if before is not None and before.op_type == "Dropout":
        read = before.inputs[0]
        assert read is not None
    model.graph.outputs.append(read)
    return model
