"""LSTM and GRU cells with 8-bit recurrent weights."""

from __future__ import annotations

from lite_runtime.steps.declaration import step
from lite_runtime.steps.recurrent import Cells

__all__ = ["ByteCells"]


@step("qrecurrent.i8_lstm", "qrecurrent.i8_gru")
class ByteCells(Cells):
    """Cells as in `recurrent`, with weights in blocks of bytes."""

    blocks: int  # along the sum
    dwords: int  # of a block: four weights each
    scheme: int  # of QuantizeRows by which h is rounded to bytes; 0: to 16 bits
