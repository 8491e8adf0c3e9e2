"""The planner's problem as an integer program for HiGHS.

Only the choice at each node is binary. Between a maker and each of its readers there is a *flow* over pairs of forms,
whose sums on either side equal the shares of the options that make or need the form: on trees of transfers the linear
relaxation then has integer solutions. If several readers share a value, a *copy* variable of each pair of forms is at
least every reader's flow; costs and bytes belong to copies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from cloud.errors import PlanError
from cloud.parallel.solving.problem import Floats, Problem, Row, Transfer, evaluate

__all__ = ["Found", "Programme", "fitting", "variables"]


class Found(NamedTuple):
    """The result of one integer program: `options` is None if none fits (`proven`) or none was found in time."""

    options: tuple[int, ...] | None
    cost: float
    bound: float
    proven: bool
    message: str


def fitting(model: Programme, rows: list[int], seconds: float, gap: float) -> Found:
    """Solve and add the violated memory constraints to `rows`, until none is violated."""
    start = time.monotonic()
    while True:
        result = model.run(rows, max(seconds - (time.monotonic() - start), 0.1), gap)
        if result.x is None:
            return Found(None, np.inf, np.inf if result.status == 2 else -np.inf, result.status == 2, result.message)
        options = model.options(result.x)
        cost, held = evaluate(model.problem, options)
        broken = [k for k, row in enumerate(model.problem.rows) if held[k] > row.limit]
        if not broken:
            return Found(options, cost, model.unscaled(result.mip_dual_bound), result.status == 0, result.message)
        fresh = [k for k in broken if k not in rows]
        rows += fresh
        if not fresh:  # over a limit, but within the solver's tolerance
            model.forbid(options)


def variables(problem: Problem) -> int:
    """Approximate number of variables of the integer program: options, and pairs of forms of every flow."""
    count = sum(len(costs) for costs in problem.nodes)
    for transfer in problem.transfers:
        made = len({*transfer.maker})
        count += sum(made * len({*forms}) for node, forms in transfer.readers if made > 1 and len({*forms}) > 1)
    return count


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


class Programme:
    """The integer program: variables are numbered in the order they are made, binaries first."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.cost: list[float] = []
        self.rows = _Rows()
        self.choice = [self._node(costs) for costs in problem.nodes]
        self.binaries = len(self.cost)
        self.copies = [self._transfer(transfer) for transfer in problem.transfers]
        positive = [cost for cost in self.cost if cost > 0]
        # About 1 for an important node, so that the solver's absolute tolerances are far below relevant differences.
        self.scale = 1.0 / max(positive) if positive else 1.0
        self.width = len(self.cost)

    def _variable(self, cost: float) -> int:
        self.cost.append(cost)
        return len(self.cost) - 1

    def _node(self, costs: Floats) -> dict[int, int]:
        """Available options to their variables, whose sum is 1."""
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
        """Variables of the copies (made, wanted) that have a cost or take memory."""
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
        """(made, wanted) to the variables whose sum is 1 if this reader gets the value by this pair of forms."""
        made, wanted = self._forms(transfer.source, transfer.maker), self._forms(reader, forms)
        if reader == transfer.source:
            own: dict[tuple[int, int], list[int]] = {}
            for option, variable in self.choice[reader].items():
                own.setdefault((transfer.maker[option], forms[option]), []).append(variable)
            self._rule_out(transfer, own)
            return {pair: carriers for pair, carriers in own.items() if np.isfinite(transfer.cost[pair])}
        if len(made) == 1 or len(wanted) == 1:  # the other side alone determines the pair
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
        """SciPy's result with these memory constraints."""
        return self._milp(np.array(self.cost) * self.scale, self._memory(rows), self.width, seconds, gap)

    def _memory(self, rows: Iterable[int]) -> _Rows:
        memory = _Rows()
        for row in (self.problem.rows[k] for k in rows):
            unit = max(abs(row.limit), 1.0)
            memory.add(((v, f / unit) for v, f in self._terms(row)), -np.inf, (row.limit - row.fixed) / unit)
        return memory

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
            raise PlanError(f"no plan fits; how much would was not found within {seconds:g} s: allow more seconds")
        return float(found.x[-1]) * unit, self.options(found.x)

    def _milp(self, cost: Floats, memory: _Rows, width: int, seconds: float, gap: float) -> Any:
        binary = np.arange(width) < self.binaries
        high = np.where(np.arange(width) < self.width, 1.0, np.inf)
        low = np.where(np.arange(width) < self.width, 0.0, -np.inf)
        constraints = [rows.constraint(width) for rows in (self.rows, memory) if rows.low]
        options = {"time_limit": seconds, "mip_rel_gap": gap}
        return milp(cost, integrality=binary, bounds=Bounds(low, high), constraints=constraints, options=options)

    def forbid(self, options: Sequence[int]) -> None:
        """Exclude exactly this choice."""
        variables = [chosen[option] for chosen, option in zip(self.choice, options, strict=True)]
        self.rows.add(((variable, 1.0) for variable in variables), 0.0, len(variables) - 1.0)

    def options(self, x: Floats) -> tuple[int, ...]:
        """The options that the values of the variables select."""
        return tuple(max(chosen, key=lambda option: x[chosen[option]]) for chosen in self.choice)

    def unscaled(self, bound: float | None) -> float:
        """The solver's cost in seconds."""
        return -np.inf if bound is None else float(bound) / self.scale
