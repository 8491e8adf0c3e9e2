"""Backpropagation through time for LSTM and GRU cells, float32, one direction at a time."""

from __future__ import annotations

from lite_runtime.steps.declaration import In, InOut, Out, Scratch, Step, step

__all__ = ["GruBack", "GruGates", "LstmBack", "LstmCells", "StatesBefore"]


class _Times(Step):
    """Arrays are (times, batch, ...)."""

    times: int
    batch: int
    hidden: int
    backwards: int  # 1: the direction runs from the end
    y_time: int  # stride in floats over times of Y and dY


@step("recurrentgrad.f32_before")
class StatesBefore(_Times):
    """The hidden states before each step."""

    y: In
    h0: In | None
    before: Out  # (times, batch, hidden)


@step("recurrentgrad.f32_lstm_cells")
class LstmCells(_Times):
    """Activations of gates, in place, and the cells."""

    gates: InOut  # (times, batch, 4, hidden)
    c0: In | None
    cells: Out


@step("recurrentgrad.f32_lstm_back")
class LstmBack(_Times):
    """Gradients of the gates' sums, in place of the gates, and of the first states."""

    gates: InOut
    cells: In
    c0: In | None
    r: In  # (4 * hidden, hidden)
    dy: In | None
    dy_h: In | None
    dy_c: In | None
    dh: InOut  # (batch, hidden)
    dc: InOut


@step("recurrentgrad.f32_gru_gates")
class GruGates(_Times):
    """z and r, in place, and r * h."""

    seen: InOut  # (times, batch, 3, hidden): the input's contribution
    past: In  # as `seen`: the previous state's contribution
    before: In  # (times, batch, hidden)
    met: Out | None  # r * h


@step("recurrentgrad.f32_gru_back")
class GruBack(_Times):
    """Gradients of the contributions of input and state to the gates, in place of z, r, the candidate's part (`seen`)
    and of `past`; and of the first state."""

    seen: InOut
    past: InOut
    before: In
    r: In  # (3 * hidden, hidden)
    dy: In | None
    dy_h: In | None
    dmet: Scratch  # (batch, hidden)
    dh: InOut
    late: int  # linear_before_reset
