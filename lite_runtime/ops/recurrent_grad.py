"""LSTMGrad and GRUGrad: products over all times around one pass through time (kernels/recurrentgrad.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from lite_runtime import steps
from lite_runtime.frozen import NamedTuple
from lite_runtime.ops._geometry import Geometry
from lite_runtime.ops._outer import emit_outer
from lite_runtime.ops._panels import packed_size
from lite_runtime.ops.linear import Product, emit_pack, emit_product
from lite_runtime.ops.reduce import emit_sum
from lite_runtime.ops.registry import Binder, NoKernel, Operand, bind

__all__: list[str] = []


class _Sizes(NamedTuple):
    times: int
    batch: int
    inputs: int
    hidden: int
    gates: int

    @property
    def cells(self) -> int:
        """Number of times multiplied by number of samples."""
        return self.times * self.batch

    @property
    def columns(self) -> int:
        """The units of all gates."""
        return self.gates * self.hidden


if TYPE_CHECKING:

    class _Times(TypedDict):
        """The words that all steps through time share."""

        times: int
        batch: int
        hidden: int
        backwards: int
        y_time: int

else:
    _Times = dict


class _Direction:
    """The operands of one direction, and the values that all its steps share."""

    def __init__(self, b: Binder, s: _Sizes, d: int) -> None:
        self.b, self.s, self.d = b, s, d
        self.backwards = d == 1 or b.attr("direction", "forward") == "reverse"

    def part(self, operand: Operand | None, *shape: int, skip: int = 0) -> Operand | None:
        """The part for this direction of an operand with directions first, `skip` floats further."""
        if operand is None or operand.size == 0:
            return None
        return operand.at(4 * (self.d * operand.size // self._count(operand) + skip), shape)

    def _count(self, operand: Operand) -> int:
        return operand.shape[0]

    def over_time(self, operand: Operand | None) -> Operand | None:
        """This direction of Y or dY, (times, directions, batch, hidden)."""
        step = 4 * self.d * self.s.batch * self.s.hidden
        return None if operand is None else operand.at(step, operand.shape)

    def scratch(self, *shape: int) -> Operand:
        return self.b.scratch("float32", shape)

    def times(self, y: Operand) -> _Times:
        s = self.s
        return _Times(
            times=s.times, batch=s.batch, hidden=s.hidden, backwards=int(self.backwards), y_time=y.size // s.times
        )

    def product(
        self,
        a: Operand,
        w: Operand,
        sizes: tuple[int, int],
        out: Operand,
        *,
        turned: bool,
        bias: Operand | None = None,
        residual: Operand | None = None,
        row: int = 0,
    ) -> None:
        """out (cells, columns) = a (cells, depth) times w, (columns, depth) if `turned`, otherwise (depth, columns);
        rows of `out` are `row` floats apart if given. sizes: depth, columns."""
        depth, columns = sizes
        p = Product(self.s.cells, columns, depth)
        p.out_row = row or columns
        packed = self.scratch(packed_size(depth, columns, self.b.lanes))
        emit_pack(self.b, w, packed, sizes, trans=turned)
        emit_product(self.b, p, a, packed, bias, residual, out, activate=False)

    def weight_gradient(self, a: Operand, skip: int, rows: int, met: Operand, columns: int, out: Operand) -> None:
        """out (rows, columns): the sum over cells of `rows` of a's columns, starting at `skip`, times those of
        `met`."""
        column = (self.s.cells, 1)
        g = Geometry(1, self.s.cells, 1, self.s.columns, column, (1, 1), (1, 1), (1, 1), (0, 0))
        emit_outer(self.b, g, a.at(4 * skip, a.shape), met, out, 1, (rows, columns))

    def sum_cells(self, a: Operand, out: Operand) -> None:
        """out (columns,): the sum over cells."""
        emit_sum(self.b, a, out, self.s.cells, self.s.columns)

    def before(self, y: Operand, h0: Operand | None) -> Operand:
        """The hidden states before each step."""
        s = self.s
        before = self.scratch(s.cells, s.hidden)
        seen = self.over_time(y)
        assert seen is not None
        self.b.emit(steps.StatesBefore(y=seen, h0=h0, before=before, **self.times(y)))
        return before


def _sizes(b: Binder, gates: int) -> _Sizes:
    x, r = b.inputs[0], b.inputs[2]
    assert x is not None and r is not None
    if any(o is not None and o.dtype != "float32" for o in b.inputs) or b.attr("layout", 0):
        raise NoKernel("another type than float32, a batch before time, or lengths")
    times, batch, inputs = x.shape
    sizes = _Sizes(times, batch, inputs, r.shape[2], gates)
    if not min(sizes):
        raise NoKernel("an empty sequence")
    return sizes


def _input_gradient(b: Binder, made: list[tuple[_Direction, Operand]]) -> None:
    """dX: every direction's dgates times its W, added up."""
    dx, w, so_far = b.outputs[0], b.inputs[1], None
    assert w is not None
    if dx is None:
        return
    for direction, dgates in made:
        s = direction.s
        weights = direction.part(w, s.columns, s.inputs)
        assert weights is not None
        out = dx if direction is made[-1][0] else direction.scratch(*dx.shape)
        direction.product(dgates, weights, (s.columns, s.inputs), out, turned=False, residual=so_far)
        so_far = out


def _given(b: Binder, count: int) -> list[Operand | None]:
    return [*b.inputs, *[None] * count][:count]


def _wanted(b: Binder, count: int) -> list[Operand | None]:
    return [*b.outputs, *[None] * count][:count]


@bind("LSTMGrad")
def _bind_lstm(b: Binder) -> None:
    """Operands X, W, R, Y, B?, lengths?, initial h?, initial c?, dY?, dY_h?, dY_c?"""
    s = _sizes(b, 4)
    x, w, r, y, bias, _, h0, c0, dy, dy_h, dy_c = _given(b, 11)
    assert x is not None and w is not None and r is not None and y is not None
    _, dw, dr, db, dh0, dc0 = _wanted(b, 6)
    made, state, columns = [], (s.batch, s.hidden), s.columns
    for d in range(r.shape[0]):
        way = _Direction(b, s, d)
        recurrent, first_c = way.part(r, columns, s.hidden), way.part(c0, *state)
        weights = way.part(w, columns, s.inputs)
        assert recurrent is not None and weights is not None
        before = way.before(y, way.part(h0, *state))
        shares, gates = way.scratch(s.cells, columns), way.scratch(s.cells, columns)
        way.product(x, weights, (s.inputs, columns), shares, turned=True, bias=way.part(bias, columns))
        late = way.part(bias, columns, skip=columns)
        way.product(before, recurrent, (s.hidden, columns), gates, turned=True, bias=late, residual=shares)
        cells = way.scratch(s.cells, s.hidden)
        b.emit(steps.LstmCells(gates=gates, c0=first_c, cells=cells, **way.times(y)))
        dh, dc = (way.part(o, *state) or way.scratch(*state) for o in (dh0, dc0))
        b.emit(
            steps.LstmBack(
                gates=gates,
                cells=cells,
                c0=first_c,
                r=recurrent,
                dy=way.over_time(dy),
                dy_h=way.part(dy_h, *state),
                dy_c=way.part(dy_c, *state),
                dh=dh,
                dc=dc,
                **way.times(y),
            )
        )
        made.append((way, gates))
        if (out := way.part(dw, columns, s.inputs)) is not None:
            way.weight_gradient(gates, 0, columns, x, s.inputs, out)
        if (out := way.part(dr, columns, s.hidden)) is not None:
            way.weight_gradient(gates, 0, columns, before, s.hidden, out)
        for skip in (0, columns):
            if (out := way.part(db, columns, skip=skip)) is not None:
                way.sum_cells(gates, out)
    _input_gradient(b, made)


@bind("GRUGrad")
def _bind_gru(b: Binder) -> None:
    """Operands X, W, R, Y, B?, lengths?, initial h?, dY?, dY_h?"""
    s = _sizes(b, 3)
    x, w, r, y, bias, _, h0, dy, dy_h = _given(b, 9)
    assert x is not None and w is not None and r is not None and y is not None
    _, dw, dr, db, dh0 = _wanted(b, 5)
    made, state, columns, two = [], (s.batch, s.hidden), s.columns, 2 * s.hidden
    late = bool(b.attr("linear_before_reset", 0))
    for d in range(r.shape[0]):
        way = _Direction(b, s, d)
        recurrent, weights = way.part(r, columns, s.hidden), way.part(w, columns, s.inputs)
        candidate = way.part(r, s.hidden, s.hidden, skip=two * s.hidden)
        assert recurrent is not None and weights is not None and candidate is not None
        before = way.before(y, way.part(h0, *state))
        seen, past = way.scratch(s.cells, columns), way.scratch(s.cells, columns)
        met = before if late else way.scratch(s.cells, s.hidden)
        way.product(x, weights, (s.inputs, columns), seen, turned=True, bias=way.part(bias, columns))
        gate_bias = way.part(bias, two, skip=columns)
        way.product(before, recurrent, (s.hidden, two), past, turned=True, bias=gate_bias, row=columns)
        b.emit(steps.GruGates(seen=seen, past=past, before=before, met=None if late else met, **way.times(y)))
        last = way.part(bias, s.hidden, skip=columns + two)
        share = past.at(4 * two, past.shape)
        way.product(met, candidate, (s.hidden, s.hidden), share, turned=True, bias=last, row=columns)
        b.emit(
            steps.GruBack(
                seen=seen,
                past=past,
                before=before,
                r=recurrent,
                dy=way.over_time(dy),
                dy_h=way.part(dy_h, *state),
                dmet=way.scratch(*state),
                dh=way.part(dh0, *state) or way.scratch(*state),
                late=int(late),
                **way.times(y),
            )
        )
        made.append((way, seen))
        if (out := way.part(dw, columns, s.inputs)) is not None:
            way.weight_gradient(seen, 0, columns, x, s.inputs, out)
        if (out := way.part(dr, two, s.hidden)) is not None:
            way.weight_gradient(past, 0, two, before, s.hidden, out)
        if (out := way.part(dr, s.hidden, s.hidden, skip=two * s.hidden)) is not None:
            way.weight_gradient(past, two, s.hidden, met, s.hidden, out)
        for skip, sums in ((0, seen), (columns, past)):
            if (out := way.part(db, columns, skip=skip)) is not None:
                way.sum_cells(sums, out)
    _input_gradient(b, made)
