"""Calibration data of a model with state: its rows are the steps of one stream, in the given order.

The float model runs over the stream once. Each row is completed by the state that the runs before it left, so that the
quantiser sees an ordinary model whose further inputs have the values that they have in use.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from converter.quantize.calibration.data import Row, Samples, Source, collected, rows_in_order
from converter.quantize.calibration.observe import Runner
from lite_runtime.graph import Array, StateUse

__all__ = ["load"]


def load(source: Source, model: ir.Model, use: StateUse, initial: Mapping[str, Array]) -> Samples:
    """Calibration rows of `model`; its inputs and outputs in `use` are state. Raises QuantizeError, as `data.load`."""
    rows = rows_in_order(source, model, without=use.reads)
    inputs = [v for v in model.graph.inputs if v.name]
    return collected(_completed(rows, Runner(model, ()), use, initial), inputs, "of a stream")


def _completed(rows: tuple[Row, ...], runner: Runner, use: StateUse, initial: Mapping[str, Array]) -> Iterator[Row]:
    state = dict(initial)
    for given in rows:
        row = given | {name: state[held] for name, held in use.reads.items()}
        results = runner.run(row)
        state.update({held: results[name] for name, held in use.writes.items()})
        yield row
