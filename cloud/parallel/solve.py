"""The best options of a `Problem`, proven: an integer programme for HiGHS.

Only the choice at each node is binary. Between a maker and each of its readers runs a *flow* over pairs of forms whose
sums on either side are the shares of the options that make or want the form: on trees of transfers the relaxation then
has whole solutions by itself. Where several readers share a value, a *copy* of each pair of forms is at least every
reader's flow; costs and bytes lie on copies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from cloud.errors import PlanError
from cloud.parallel.problem import Floats, Problem, Row, Solution, Transfer

__all__ = ["Infeasible", "evaluate", "least", "solve"]

FEW_ROWS = 32
"""Up to so many rows are given to the solver at once; of more, those that turn out to bind."""

SMALL = 1500
"""Variables up to which the whole programme is solved at once."""

FIRST_REACH = 2e-4
"""Share of the relaxation's cost within which options are tried first, where bargaining found no choice."""

DEARER = (1.0, 1.1, 1.3, 2.0, 5.0, 20.0)
"""Multiples of the relaxation's prices for memory, tried until a choice fits."""


class Infeasible(PlanError):
    """No choice of options fits. `least`: the limit at which one would, in bytes (inf where transfers alone rule all
    out); `rows`: labels of the rows that then are full; `options`: that choice."""

    def __init__(self, text: str, least: float, rows: tuple[str, ...], options: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.least, self.rows, self.options = least, rows, options


def evaluate(problem: Problem, options: Sequence[int]) -> tuple[float, Floats]:
    """Seconds of a choice (inf where it cannot be) and the bytes of every row: the one truth of what a choice costs."""
    cost = sum(float(costs[option]) for costs, option in zip(problem.nodes, options, strict=True))
    held = []
    for transfer in problem.transfers:
        made = transfer.maker[options[transfer.source]]
        wanted = sorted({forms[options[node]] for node, forms in transfer.readers})
        cost += transfer.weight * float(transfer.cost[made, wanted].sum())
        held.append(float(transfer.bytes[made, wanted].sum()))
    rows = [
        row.fixed
        + sum(float(sizes[options[node]]) for node, sizes in row.nodes.items())
        + sum(alive * held[transfer] for transfer, alive in row.copies.items())
        for row in problem.rows
    ]
    return cost, np.array(rows, np.float64)


def solve(problem: Problem, seconds: float = 60.0, gap: float = 1e-6) -> Solution:
    """The cheapest options whose rows all fit, to a relative `gap`, or the best found in `seconds`. The same problem
    gives the same options, unless time runs out. Raises `Infeasible`, and `PlanError` where time ran out before any
    choice that fits was found.

    Large problems get a first choice by paying for memory what the relaxation says it is worth (`_bargained`), and
    are solved among few options: those whose reduced cost in the relaxation is within `reach` of
    its least. Whatever takes another option costs at least the relaxation plus `reach`, so that a solution within
    that is the best of all; else `reach` grows to what the found solution leaves open."""
    start = time.monotonic()
    model = _Model(problem)
    rows = list(range(len(problem.rows))) if len(problem.rows) <= FEW_ROWS else []
    best: tuple[float, tuple[int, ...]] | None = None
    lower, reach, spare = -np.inf, np.inf, [np.zeros(len(costs)) for costs in problem.nodes]
    if model.width > SMALL:
        lower, spare, prices = model.relaxed(seconds / 3)
        rows = list(prices)
        best = _bargained(problem, prices, start + seconds / 2) if lower < np.inf else None
        reach = FIRST_REACH * max(lower, 0.0) if best is None else max(best[0] - lower, gap * best[0]) * (1 + 1e-9)
    bound, programmes, proven, message = lower, 0, False, ""
    while (left := seconds - (time.monotonic() - start)) > 0 or not programmes:
        if best is not None and best[0] - lower <= gap * best[0]:
            proven = True
            break
        last = all((excess[np.isfinite(excess)] <= reach).all() for excess in spare)
        among = model if last else _Model(_within(problem, spare, reach))
        found = _programme(among, rows, max(left if last else left / 3, 0.1), gap)
        programmes, message = programmes + 1, found.message
        if found.options is not None and (best is None or found.cost < best[0]):
            best = found.cost, found.options
        if last or (best is not None and best[0] - lower <= reach):
            proven = found.proven
            bound = max(lower, found.bound if last else min(found.bound, lower + reach))
            break
        reach = reach * 8 if best is None else (best[0] - lower) * (1 + 1e-9)
    if best is None:
        if proven or lower == np.inf:
            raise _infeasible(problem, model, max(left, 10.0))
        raise PlanError(f"no plan found within {seconds:g} s ({message}): allow more seconds or fewer mesh axes")
    facts = {"variables": model.width, "rows": len(rows), "programmes": programmes, "proven": proven}
    cost, options = best
    held = evaluate(problem, options)[1]
    return Solution(options, cost, min(bound, cost), held, time.monotonic() - start, facts)


class _Found(NamedTuple):
    """What one programme gave: `options` None where none fits (`proven`) or none was found in time."""

    options: tuple[int, ...] | None
    cost: float
    bound: float
    proven: bool
    message: str


def _programme(model: _Model, rows: list[int], seconds: float, gap: float) -> _Found:
    """Solve, add the rows that turn out broken to `rows`, until none is."""
    start = time.monotonic()
    while True:
        result = model.run(rows, max(seconds - (time.monotonic() - start), 0.1), gap)
        if result.x is None:
            return _Found(None, np.inf, np.inf if result.status == 2 else -np.inf, result.status == 2, result.message)
        options = model.options(result.x)
        cost, held = evaluate(model.problem, options)
        broken = [k for k, row in enumerate(model.problem.rows) if held[k] > row.limit]
        if not broken:
            return _Found(options, cost, model.unscaled(result.mip_dual_bound), result.status == 0, result.message)
        fresh = [k for k in broken if k not in rows]
        rows += fresh
        if not fresh:  # within the solver's tolerance of a limit, yet past it
            model.forbid(options)


def _bargained(problem: Problem, prices: Mapping[int, float], end: float) -> tuple[float, tuple[int, ...]] | None:
    """A choice that fits, where bytes cost ever more seconds from `prices` (row to seconds a byte) on: without rows
    the programme is easy, and HiGHS may else need minutes for the first choice that fits. None where none did."""
    for dearer in DEARER:
        if (left := end - time.monotonic()) <= 0:
            break
        model = _Model(_charged(problem, {row: dearer * price for row, price in prices.items()}))
        found = model.run([], left, 1e-4)
        if found.x is not None:
            options = model.options(found.x)
            cost, held = evaluate(problem, options)
            if all(bytes_ <= row.limit for bytes_, row in zip(held, problem.rows, strict=True)):
                return cost, options
    return None


def _charged(problem: Problem, prices: Mapping[int, float]) -> Problem:
    """The problem without rows, the bytes of each at a price instead."""
    nodes = [costs.copy() for costs in problem.nodes]
    extra = [0.0] * len(problem.transfers)
    for k, price in prices.items():
        for node, sizes in problem.rows[k].nodes.items():
            nodes[node] += price * sizes
        for transfer, alive in problem.rows[k].copies.items():
            extra[transfer] += price * alive
    transfers = (
        replace(each, cost=each.weight * each.cost + charge * each.bytes, weight=1.0)
        for each, charge in zip(problem.transfers, extra, strict=True)
    )
    return Problem(tuple(nodes), tuple(transfers))


def _within(problem: Problem, spare: Sequence[Floats], reach: float) -> Problem:
    """The problem with only those options whose reduced cost is within `reach`."""
    nodes = (np.where(excess <= reach, costs, np.inf) for costs, excess in zip(problem.nodes, spare, strict=True))
    return replace(problem, nodes=tuple(nodes))


def least(problem: Problem, seconds: float = 60.0) -> tuple[float, tuple[int, ...]]:
    """The least memory any choice needs: the largest row of the choice whose largest row is smallest, taking all limits
    as equal; and that choice."""
    equal = replace(problem, rows=tuple(replace(row, limit=0.0) for row in problem.rows))
    model = _Model(equal)
    excess, options = model.fullest(seconds)
    return excess, options


def _infeasible(problem: Problem, model: _Model, seconds: float) -> Infeasible:
    if not problem.rows or model.run([], seconds, 1e-6).status == 2:
        return Infeasible("no choice of options is possible: every one needs a transfer that cannot be", np.inf, ())
    _, options = model.fullest(seconds)
    _, bytes_ = evaluate(problem, options)
    over = np.array([bytes_[k] - row.limit for k, row in enumerate(problem.rows)])
    full = [k for k in np.argsort(-over, kind="stable") if over[k] > 0.99 * over.max()]
    limit = problem.rows[full[0]].limit
    need = float(bytes_[full[0]])
    names = tuple(problem.rows[k].label for k in full[:5])
    fits = f"the least that would fit is {need:.4g}, at {', '.join(names)}"
    text = f"expected a plan within {limit:.4g} bytes a device; {fits}: give more memory or allow recomputing"
    return Infeasible(text, need, names, options)


@dataclass(slots=True)
class _Rows:
    """Sparse constraints `low <= A x <= high`, written term by term."""

    data: list[float] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], low: float, high: float) -> None:
        for column, factor in terms:
            self.columns.append(column)
            self.data.append(factor)
        self.starts.append(len(self.data))
        self.low.append(low)
        self.high.append(high)

    def constraint(self, width: int) -> LinearConstraint:
        shape = (len(self.low), width)
        matrix = sparse.csr_matrix((self.data, self.columns, self.starts), shape=shape)
        matrix.sum_duplicates()
        return LinearConstraint(matrix, self.low, self.high)


def _some(constraint: LinearConstraint, rows: Sequence[int]) -> LinearConstraint:
    return LinearConstraint(constraint.A[rows], constraint.lb[rows], constraint.ub[rows])


def _linear(cost: Floats, constraints: Sequence[LinearConstraint], seconds: float) -> Any:
    """SciPy's result of the relaxation, with reduced costs."""
    matrix = sparse.vstack([each.A for each in constraints], format="csr")
    low, high = (np.concatenate([getattr(each, side) for each in constraints]) for side in ("lb", "ub"))
    equal, above, below = low == high, (low > -np.inf) & (low < high), (high < np.inf) & (low < high)
    at_most = sparse.vstack([-matrix[above], matrix[below]], format="csr")
    ends = np.concatenate([-low[above], high[below]])
    limits = {"time_limit": seconds}
    return linprog(cost, at_most, ends, matrix[equal], low[equal], bounds=(0, 1), method="highs", options=limits)


class _Model:
    """The programme: variables numbered as they are made, binaries first."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.cost: list[float] = []
        self.rows = _Rows()
        self.choice = [self._node(costs) for costs in problem.nodes]
        self.binaries = len(self.cost)
        self.copies = [self._transfer(transfer) for transfer in problem.transfers]
        positive = [cost for cost in self.cost if cost > 0]
        # About 1 for a node that matters, so that the solver's absolute tolerances are far below what is at stake.
        self.scale = 1.0 / max(positive) if positive else 1.0
        self.width = len(self.cost)

    def _variable(self, cost: float) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def _node(self, costs: Floats) -> dict[int, int]:
        """Option to variable, of the options that can be had; their sum is 1."""
        chosen = {option: self._variable(float(cost)) for option, cost in enumerate(costs) if np.isfinite(cost)}
        self.rows.add(((variable, 1.0) for variable in chosen.values()), 1.0, 1.0)
        return chosen

    def _forms(self, node: int, forms: Sequence[int]) -> dict[int, list[int]]:
        """Form to the variables of the options that have it."""
        by_form: dict[int, list[int]] = {}
        for option, variable in self.choice[node].items():
            by_form.setdefault(forms[option], []).append(variable)
        return by_form

    def _transfer(self, transfer: Transfer) -> dict[tuple[int, int], int]:
        """The copies (made, wanted) that cost or hold something, as variables."""
        flows = [self._flow(transfer, node, forms) for node, forms in transfer.readers]
        counts = {pair for flow in flows for pair in flow if transfer.cost[pair] != 0 or transfer.bytes[pair] != 0}
        copies = {}
        for pair in sorted(counts):
            carriers = [flow[pair] for flow in flows if pair in flow]
            price = transfer.weight * float(transfer.cost[pair])
            if len(carriers) == 1 and len(carriers[0]) == 1:
                copies[pair] = carriers[0][0]
                self.cost[copies[pair]] += price
                continue
            copies[pair] = self._variable(price)
            for carrier in carriers:
                self.rows.add([(copies[pair], 1.0), *((variable, -1.0) for variable in carrier)], 0.0, np.inf)
        return copies

    def _flow(self, transfer: Transfer, reader: int, forms: Sequence[int]) -> dict[tuple[int, int], list[int]]:
        """(made, wanted) to the variables whose sum is 1 where the value goes so to this reader."""
        made, wanted = self._forms(transfer.source, transfer.maker), self._forms(reader, forms)
        if reader == transfer.source:
            own: dict[tuple[int, int], list[int]] = {}
            for option, variable in self.choice[reader].items():
                own.setdefault((transfer.maker[option], forms[option]), []).append(variable)
            self._rule_out(transfer, own)
            return {pair: carriers for pair, carriers in own.items() if np.isfinite(transfer.cost[pair])}
        if len(made) == 1 or len(wanted) == 1:  # the other side alone says which pair it is
            whole = {(a, b): wanted[b] if len(made) == 1 else made[a] for a in made for b in wanted}
            self._rule_out(transfer, whole)
            return {pair: carriers for pair, carriers in whole.items() if np.isfinite(transfer.cost[pair])}
        flow = {(a, b): [self._variable(0.0)] for a in made for b in wanted if np.isfinite(transfer.cost[a, b])}
        for a, makers in made.items():
            out = [(flow[a, b][0], 1.0) for b in wanted if (a, b) in flow]
            self.rows.add([*out, *((variable, -1.0) for variable in makers)], 0.0, 0.0)
        for b, readers in wanted.items():
            into = [(flow[a, b][0], 1.0) for a in made if (a, b) in flow]
            self.rows.add([*into, *((variable, -1.0) for variable in readers)], 0.0, 0.0)
        return flow

    def _rule_out(self, transfer: Transfer, pairs: Mapping[tuple[int, int], list[int]]) -> None:
        for pair, carriers in pairs.items():
            if not np.isfinite(transfer.cost[pair]):
                self.rows.add(((variable, 1.0) for variable in carriers), 0.0, 0.0)

    def _terms(self, row: Row) -> list[tuple[int, float]]:
        terms = [
            (variable, float(sizes[option]))
            for node, sizes in row.nodes.items()
            for option, variable in self.choice[node].items()
        ]
        for transfer, alive in row.copies.items():
            held = self.problem.transfers[transfer].bytes
            terms += [(variable, alive * float(held[pair])) for pair, variable in self.copies[transfer].items()]
        return [(variable, factor) for variable, factor in terms if factor]

    def run(self, rows: Sequence[int], seconds: float, gap: float) -> Any:
        """SciPy's result with these memory rows."""
        return self._milp(np.array(self.cost) * self.scale, self._memory(rows), self.width, seconds, gap)

    def _memory(self, rows: Iterable[int]) -> _Rows:
        memory = _Rows()
        for row in (self.problem.rows[k] for k in rows):
            unit = max(abs(row.limit), 1.0)
            memory.add(((v, f / unit) for v, f in self._terms(row)), -np.inf, (row.limit - row.fixed) / unit)
        return memory

    def relaxed(self, seconds: float) -> tuple[float, list[Floats], dict[int, float]]:
        """Of the relaxation: its cost in seconds (inf where nothing fits), the reduced cost of every option (inf of
        those that cannot be had), and the rows that bind with what a byte of them is worth, in seconds. Where
        time runs out: -inf, 0 and nothing."""
        start = time.monotonic()
        base, memory = self.rows.constraint(self.width), self._memory(range(len(self.problem.rows)))
        every = memory.constraint(self.width) if memory.low else None
        rows: list[int] = []
        while True:
            left = max(seconds - (time.monotonic() - start), 0.1)
            result = _linear(np.array(self.cost) * self.scale, [base, *([_some(every, rows)] if rows else [])], left)
            if result.x is None:
                open_ = [np.where(np.isfinite(costs), 0.0, np.inf) for costs in self.problem.nodes]
                return (np.inf if result.status == 2 else -np.inf), open_, dict.fromkeys(rows, 0.0)
            over = every.A @ result.x - every.ub if every is not None else np.zeros(0)
            fresh = [k for k in np.flatnonzero(over > 1e-9).tolist() if k not in rows]
            if not fresh:
                break
            rows += fresh
        spare = [np.full(len(costs), np.inf) for costs in self.problem.nodes]
        for node, chosen in enumerate(self.choice):
            for option, variable in chosen.items():
                spare[node][option] = self.unscaled(result.lower.marginals[variable])
        worth = -result.ineqlin.marginals[len(result.ineqlin.marginals) - len(rows) :]
        units = [max(abs(self.problem.rows[k].limit), 1.0) for k in rows]
        prices = {k: self.unscaled(each) / unit for k, each, unit in zip(rows, worth, units, strict=True)}
        return self.unscaled(result.fun), spare, prices

    def fullest(self, seconds: float) -> tuple[float, tuple[int, ...]]:
        """The choice whose largest excess over a row's limit is least, and that excess in bytes."""
        most = (row.fixed + sum(float(sizes.max()) for sizes in row.nodes.values()) for row in self.problem.rows)
        unit = max(most, default=1.0) or 1.0
        memory = _Rows()
        for row in self.problem.rows:
            terms = [(v, f / unit) for v, f in self._terms(row)]
            memory.add([*terms, (self.width, -1.0)], -np.inf, (row.limit - row.fixed) / unit)
        found = self._milp(np.append(np.zeros(self.width), 1.0), memory, self.width + 1, seconds, 1e-4)
        if found.x is None:
            raise PlanError(f"no plan fits, and what would fit was not found within {seconds:g} s: allow more seconds")
        return float(found.x[-1]) * unit, self.options(found.x)

    def _milp(self, cost: Floats, memory: _Rows, width: int, seconds: float, gap: float) -> Any:
        binary = np.arange(width) < self.binaries
        high = np.where(np.arange(width) < self.width, 1.0, np.inf)
        low = np.where(np.arange(width) < self.width, 0.0, -np.inf)
        constraints = [rows.constraint(width) for rows in (self.rows, memory) if rows.low]
        options = {"time_limit": seconds, "mip_rel_gap": gap}
        return milp(cost, integrality=binary, bounds=Bounds(low, high), constraints=constraints, options=options)

    def forbid(self, options: Sequence[int]) -> None:
        """Rule out exactly this choice."""
        variables = [chosen[option] for chosen, option in zip(self.choice, options, strict=True)]
        self.rows.add(((variable, 1.0) for variable in variables), 0.0, len(variables) - 1.0)

    def options(self, x: Floats) -> tuple[int, ...]:
        return tuple(max(chosen, key=lambda option: x[chosen[option]]) for chosen in self.choice)

    def unscaled(self, bound: float | None) -> float:
        return -np.inf if bound is None else float(bound) / self.scale
