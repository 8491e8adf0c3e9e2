"""LSTM, GRU and RNN cells in float32; `kernels/recurrent.py` defines how they are computed."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, InOut, Out, Step, step

__all__ = ["CellNumbers", "Cells", "FinalStates", "FloatCells", "Project"]


@step("recurrent.f32_project")
class Project(Step):
    """The input's share of the gates: a product over all times."""

    x: In
    w: In  # [panels][inputs][4 * LANES]
    bias: In  # [panels][4 * LANES]
    out: Out
    rows: int
    inputs: int
    panels: int


class CellNumbers(Step):
    """Sizes and strides of cells. Strides are in floats, except x_time and x_batch, which count rows."""

    mode: int  # STEP: one time, RUN: the whole sequence
    time: int  # of mode STEP
    times: int
    batch: int
    hidden: int
    directions: int
    backwards: int  # 1: the only direction runs from the end
    row: int  # floats of a row of gates
    x_time: int  # stride in rows of gates over times, samples
    x_batch: int
    y_time: int  # of the history
    y_direction: int
    y_batch: int
    i_direction: int  # of initial and final states
    i_batch: int
    s_direction: int  # of state
    s_batch: int
    variant: int  # LSTM 1: the forget gate is 1 - i; RNN 1: Relu; GRU: which half of a cell
    clip: float  # bound of the activations' arguments


class Cells(CellNumbers):
    """Operands of cells."""

    gates: In  # the input's contribution [rows][row]
    weights: In  # recurrent, packed
    extra: In | None  # LSTM: peepholes [directions][panels][3][LANES]; GRU: bias inside the reset product
    lengths: In | None  # int32
    initial_h: In | None
    initial_c: In | None
    history: InOut  # y: h of every time
    state: InOut | None  # LSTM: c; GRU without linear_before_reset: z and r * h


@step("recurrent.f32_lstm", "recurrent.f32_gru", "recurrent.f32_rnn")
class FloatCells(Cells):
    """Cells with float32 weights."""


@step("recurrent.f32_final")
class FinalStates(CellNumbers):
    """Final h: each sample's last h (backwards: first), or its initial one if it has no times. The cells have already
    stored the final c; it is written only for samples without times."""

    final_h: Out | None
    final_c: Out | None
    extra: In | None  # always left out
    lengths: In | None
    initial_h: In | None
    initial_c: In | None
    history: In
    state: In | None
