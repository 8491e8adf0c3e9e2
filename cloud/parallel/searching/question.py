"""A folded graph on a mesh as a `Problem`: one node per class of groups, one transfer per flow between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from cloud.errors import PlanError
from cloud.parallel.cost import combine, local_bytes, reshard
from cloud.parallel.graph import Graph, Split
from cloud.parallel.plan import Assignment, Mesh
from cloud.parallel.searching.demands import Demands
from cloud.parallel.searching.edges import edges, repeated
from cloud.parallel.searching.grouping.fold import Flow, Folded, Place
from cloud.parallel.searching.grouping.groups import Derived, Group, derive
from cloud.parallel.searching.holding.memory import Lives
from cloud.parallel.searching.options import assignments, partial_axes, splits, wanted
from cloud.parallel.searching.walk import behind, early, late, loose
from cloud.parallel.searching.work import work
from cloud.parallel.solving.problem import Floats, Problem, Transfer
from cloud.parallel.topology import Topology

__all__ = ["Node", "Question", "Shape", "ask"]

TIE = 1e-5
"""Cost of holding an input, as a share of the time to read it: among equals, the sharded one wins."""

Lead = Assignment | Split


@dataclass(frozen=True)
class Shape:
    """The part of a step that does not depend on the mesh. `reading[v, t]`: operators in other groups that read value v
    at its reading time t, -1 for the step's end."""

    graph: Graph
    groups: Sequence[Group]
    folded: Folded
    lives: Lives
    reading: Mapping[tuple[int, int], Sequence[int]]


@dataclass(frozen=True)
class Node:
    """A class and its options: the leader's choice, and the resulting assignments of the members."""

    group: Group
    leads: tuple[Lead, ...]
    derived: tuple[Derived, ...]
    seconds: Floats

    def made(self, place: Place, option: int) -> Split:
        """The split of the value made at `place`."""
        _, at, j = place
        lead = self.leads[option]
        if at < 0:
            assert not isinstance(lead, Assignment)
            return lead
        return self.derived[option][self.group.ops[at]].results[j]

    def wanted(self, graph: Graph, place: Place, option: int) -> Split:
        """The split needed by the reader at `place`."""
        _, at, i = place
        if at < 0:
            return self.made(place, option)
        k = self.group.ops[at]
        return wanted(graph.ops[k], i, self.derived[option][k].loops)


@dataclass(frozen=True)
class Question:
    """The problem, and the meaning of its options. `flows[t]`: the flow that transfer t represents."""

    problem: Problem
    nodes: tuple[Node, ...]
    flows: tuple[int, ...]
    shape: Shape = field(repr=False)
    mesh: Mesh

    def bytes(self, value: int, split: Split) -> int:
        """Bytes of a value on one device."""
        about = self.shape.graph.values[value]
        return local_bytes(about.shape, about.dtype.itemsize, split, self.mesh)

    def choices(self, options: Sequence[int]) -> tuple[tuple[Split, ...], tuple[Assignment, ...]]:
        """The plan's `entering` and `ops`."""
        graph, groups, folded = self.shape.graph, self.shape.groups, self.shape.folded
        entering: dict[int, Split] = {}
        ops: dict[int, Assignment] = {}
        for c, option in enumerate(options):
            node = self.nodes[c]
            chosen = [node.derived[option][k] for k in node.group.ops]
            for g in folded.classes[c]:
                ops.update(zip(groups[g].ops, chosen, strict=True))
                lead = node.leads[option]
                if not isinstance(lead, Assignment):
                    entering[groups[g].value] = lead
        return tuple(entering[v] for v in graph.entering), tuple(ops[k] for k in range(len(graph.ops)))


def ask(shape: Shape, mesh: Mesh, topology: Topology, demands: Demands, reduce_scatter: bool) -> Question:
    """The problem, still without rows. Raises `PlanError` if no option meets a constraint."""
    prices = _Prices(shape, mesh, topology, reduce_scatter)
    crowded = _crowded(shape.graph, mesh, demands)
    nodes = tuple(_node(prices, c, demands, crowded) for c in range(len(shape.folded.classes)))
    transfers, flows = [], []
    for n, flow in enumerate(shape.folded.flows):
        transfer = _transfer(prices, nodes, flow)
        if transfer.cost.any() or transfer.bytes.any():
            transfers.append(transfer)
            flows.append(n)
    weights = [len(members) for members in shape.folded.classes]
    costs = tuple(node.seconds * weight for node, weight in zip(nodes, weights, strict=True))
    return Question(Problem(costs, tuple(transfers)), nodes, tuple(flows), shape, mesh)


class _Prices:
    """Seconds of all costs on one mesh; those of moves and reductions are cached."""

    def __init__(self, shape: Shape, mesh: Mesh, topology: Topology, reduce_scatter: bool) -> None:
        self.shape, self.mesh, self.topology, self.reduce_scatter = shape, mesh, topology, reduce_scatter
        self.exposed = 1.0 - topology.overlap
        self.early, self.late, self.behind = early(shape.graph), late(shape.graph), behind(shape.graph)
        self.repeated = repeated(shape.graph)
        self.loose = loose(shape.graph) if reduce_scatter else frozenset[int]()
        self.moved: dict[tuple[tuple[int, ...], int, Split, Split, bool], float] = {}

    def move(self, value: int, lies: Split, split: Split) -> float:
        """Seconds to bring a value from one split to another."""
        if lies == split:
            return 0.0
        about = self.shape.graph.values[value]
        key = about.shape, about.dtype.itemsize, lies, split, value in self.loose
        if key not in self.moved:
            self.moved[key] = reshard(*key[:4], self.mesh, self.topology, key[4])[1]
        ahead = value in self.early and about.inside < 0
        return self.shape.graph.times(value) * self.moved[key] * (self.exposed if ahead else 1.0)

    def sums(self, k: int, assignment: Assignment) -> float:
        """Seconds to combine an operator's partial results, and to exchange edges of its operands before."""
        op, values, time = self.shape.graph.ops[k], self.shape.graph.values, 0.0
        found = None if k in self.repeated else edges(op, values, assignment.loops, self.mesh)
        exchanging = op.times * found.seconds(self.mesh, self.topology) if found is not None else 0.0
        reading = [r for v in op.outputs for r in self.readers.get(v, ())]
        leads_out = all(self.late[r] for r in reading)
        how = self.reduce_scatter, all(self.behind[r] for r in reading) and self.reduce_scatter
        for j, (v, split) in enumerate(zip(op.outputs, assignment.results, strict=True)):
            axes = partial_axes(op, j, assignment.loops)
            if axes:
                about = values[v].shape, values[v].dtype.itemsize
                time += combine(*about, axes, split, self.mesh, self.topology, *how)[1]
        return exchanging + op.times * time * (self.exposed if leads_out else 1.0)

    @property
    def readers(self) -> Mapping[int, Sequence[int]]:
        return self.shape.lives.readers

    def bytes(self, value: int, split: Split) -> int:
        """Seconds on one device."""
        about = self.shape.graph.values[value]
        return local_bytes(about.shape, about.dtype.itemsize, split, self.mesh)

    def work(self, group: Group, chosen: Derived) -> float:
        return work(self.shape.graph, group, chosen, self.shape.lives.spans, self.mesh, self.topology.device)

    def inside(self, group: Group, chosen: Derived) -> float:
        """Seconds for members' partial results, and for values that another member needs in another split."""
        graph = self.shape.graph
        lies = {v: s for k, a in chosen.items() for v, s in zip(graph.ops[k].outputs, a.results, strict=True)}
        moves = {
            (v, wanted(graph.ops[k], i, a.loops))
            for k, a in chosen.items()
            for i, v in enumerate(graph.ops[k].inputs)
            if v in lies
        }
        added = sum(self.sums(member.op, chosen[member.op]) for member in group.members)
        return added + sum(self.move(v, lies[v], split) for v, split in sorted(moves))


def _node(prices: _Prices, c: int, demands: Demands, crowded: bool) -> Node:
    """`crowded`: whether loops that slide may be split."""
    shape, mesh = prices.shape, prices.mesh
    graph, group = shape.graph, shape.groups[shape.folded.classes[c][0]]
    allowed = demands.allowed(group)
    by_results: dict[object, tuple[Derived, float]] = {}
    feeds_leader = any(member.reader[0] == group.leader >= 0 for member in group.members)

    def after(lead: Lead) -> tuple[Derived, float]:
        """The members' assignments, the same for all choices of the leader with the same splits of results."""
        key = ((lead.loops if feeds_leader else ()), lead.results) if isinstance(lead, Assignment) else lead
        if key not in by_results:
            chosen = derive(graph, group, lead, mesh)
            followers = {member.op: chosen[member.op] for member in group.members}
            by_results[key] = followers, prices.work(replace(group, leader=-1), chosen) + prices.inside(group, chosen)
        return by_results[key]

    def alone(lead: Lead) -> float:
        if not isinstance(lead, Assignment):
            return TIE * prices.bytes(group.value, lead) / prices.topology.device.bandwidth
        k = group.leader
        return prices.work(replace(group, members=()), {k: lead}) + prices.sums(k, lead)

    leads: list[Lead]
    if group.leader < 0:
        leads = list(splits(graph.values[group.value].shape, mesh))
    else:
        op = graph.ops[group.leader]
        leads = list(assignments(op, [graph.values[v].shape for v in op.outputs], mesh))
        if op.slides >= 0 and not crowded:
            leads = [lead for lead in leads if isinstance(lead, Assignment) and not lead.loops[op.slides]]
    if allowed is not None:
        leads = [lead for lead in leads if allowed(_all(group, lead, after(lead)[0]), lead)]
        if not leads:
            raise _unmet(group, graph)
    chosen = [after(lead) for lead in leads]
    derived = tuple(_all(group, lead, followers) for lead, (followers, _) in zip(leads, chosen, strict=True))
    seconds = np.array([alone(lead) + time for lead, (_, time) in zip(leads, chosen, strict=True)])
    return Node(group, tuple(leads), derived, seconds)


def _crowded(graph: Graph, mesh: Mesh, demands: Demands) -> bool:
    """Whether the rows of the batch do not divide among all devices, or more than its rows shall be split. Only then is
    space worth splitting: split rows need no edges and no less memory, and what is searched in vain misleads."""
    batch = [v for v in graph.entering if graph.values[v].kind == "batch" and graph.values[v].shape]
    devices = prod(mesh.sizes)
    asked = any(any(axes for axes in demands.entering.get(v, ())[1:]) for v in batch)
    return asked or any(graph.values[v].shape[0] % devices for v in batch)


def _unmet(group: Group, graph: Graph) -> PlanError:
    what = graph.values[group.value].name if group.leader < 0 else graph.ops[group.leader].where
    return PlanError(f"no way to split {what!r} meets its pins or expert plan: axes must divide it, each used once")


def _all(group: Group, lead: Lead, followers: Derived) -> Derived:
    return {group.leader: lead, **followers} if isinstance(lead, Assignment) else followers


def _transfer(prices: _Prices, nodes: Sequence[Node], flow: Flow) -> Transfer:
    graph = prices.shape.graph
    c = flow.maker[0]
    made_forms: dict[Split, int] = {}
    wanted_forms: dict[Split, int] = {}
    maker = tuple(
        made_forms.setdefault(nodes[c].made(flow.maker, o), len(made_forms)) for o in range(len(nodes[c].leads))
    )
    readers = []
    for place in flow.readers:
        node = nodes[place[0]]
        forms = (node.wanted(graph, place, o) for o in range(len(node.leads)))
        readers.append((place[0], tuple(wanted_forms.setdefault(form, len(wanted_forms)) for form in forms)))
    pairs = [[(lies, split) for split in wanted_forms] for lies in made_forms]
    cost = np.array([[prices.move(flow.value, *pair) for pair in row] for row in pairs])
    held = np.array([[0 if a == b else prices.bytes(flow.value, b) for a, b in row] for row in pairs], np.float64)
    return Transfer(c, maker, tuple(dict.fromkeys(readers)), cost, held, float(flow.weight))
