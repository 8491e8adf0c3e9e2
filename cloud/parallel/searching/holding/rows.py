"""The memory constraints (rows) of a `Question`: the bytes of a device at a moment, as a function of the options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cloud.parallel.graph import Split
from cloud.parallel.searching.grouping.fold import Place
from cloud.parallel.searching.holding.memory import in_parts
from cloud.parallel.searching.options import made
from cloud.parallel.searching.question import Node, Question
from cloud.parallel.solving.problem import Floats, Row

__all__ = ["Moments"]

Counts = npt.NDArray[np.float64]


class Moments:
    """How many of each place's values, and of each transfer's copies, are alive at every moment; their bytes depend on
    the options."""

    def __init__(self, question: Question) -> None:
        self.question = question
        shape = question.shape
        folded, lives = shape.folded, shape.lives
        self.steps = lives.steps
        spans: dict[Place, list[tuple[int, int]]] = defaultdict(list)
        for value, span in lives.spans.items():
            if value in folded.made_at:
                spans[folded.made_at[value]].append(span)
        self.places = {place: self._counts(found) for place, found in spans.items()}
        self.sums = {
            c: self._counts([(lives.begun(shape.graph, k), lives.at[k])
                             for k in (shape.groups[g].leader for g in folded.classes[c])])
            for c, node in enumerate(question.nodes) if node.group.leader >= 0
        }  # fmt: skip
        transfers = {flow: t for t, flow in enumerate(question.flows)}
        held: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for (value, time), flow in folded.flow_of.items():
            if flow in transfers:
                held[transfers[flow]].append(lives.copy_span(value, shape.reading[value, time]))
        self.copies = {t: self._counts(found) for t, found in held.items()}
        self.beside, self.scratch = self._scratch()
        self.bytes = {place: self._weights(place) for place in self.places}
        self.scattered = {c: self._scattered(question.nodes[c]) for c in self.sums}

    def row(self, moment: int, limit: float) -> Row:
        """The constraint of `moment`."""
        nodes: dict[int, Floats] = {}
        for place, counts in self.places.items():
            if counts[moment]:
                nodes[place[0]] = nodes.get(place[0], 0.0) + counts[moment] * self.bytes[place]
        for c, counts in self.sums.items():
            if counts[moment] and self.scattered[c].any():
                nodes[c] = nodes.get(c, 0.0) + counts[moment] * self.scattered[c]
        for c, scratch in self.scratch.items():
            if scratch[moment].any():
                nodes[c] = nodes.get(c, 0.0) + scratch[moment]
        copies = {t: float(counts[moment]) for t, counts in self.copies.items() if counts[moment]}
        return Row(limit - self.beside[moment], nodes, copies, label=self._label(moment))

    def curve(self, options: Sequence[int]) -> Floats:
        """Bytes at every moment under these options."""
        total = self.beside.copy()
        for place, counts in self.places.items():
            total += counts * self.bytes[place][options[place[0]]]
        for c, counts in self.sums.items():
            total += counts * self.scattered[c][options[c]]
        for c, scratch in self.scratch.items():
            total += scratch[:, options[c]]
        for t, counts in self.copies.items():
            transfer = self.question.problem.transfers[t]
            lies = transfer.maker[options[transfer.source]]
            forms = {forms[options[node]] for node, forms in transfer.readers}
            total += counts * sum(transfer.bytes[lies, form] for form in forms)
        return total

    def fullest(self, most: int) -> list[int]:
        """Moments that get a row from the start: the highest peaks if everything is whole, and if all state is
        sharded."""
        whole = sum((counts * self.bytes[place].max() for place, counts in self.places.items()), np.zeros(self.steps))
        least = sum((counts * self.bytes[place].min() for place, counts in self.places.items()), np.zeros(self.steps))
        return sorted({m for total in (whole, least) for m in np.argsort(-total, kind="stable")[: most // 2].tolist()})

    def _counts(self, spans: Sequence[tuple[int, int]]) -> Counts:
        change = np.zeros(self.steps + 1)
        for first, last in spans:
            change[first] += 1
            change[last + 1] -= 1
        return np.cumsum(change)[:-1]

    def _size(self, value: int, split: Split) -> float:
        return self.question.bytes(value, split)

    def _weights(self, place: Place) -> Floats:
        node = self.question.nodes[place[0]]
        graph = self.question.shape.graph
        value = node.group.value if place[1] < 0 else graph.ops[node.group.ops[place[1]]].outputs[place[2]]
        return np.array([self._size(value, node.made(place, o)) for o in range(len(node.leads))])

    def _scattered(self, node: Node) -> Floats:
        """For each option: the bytes that partial results take beyond the reduced results."""
        graph = self.question.shape.graph
        op = graph.ops[node.group.leader]
        more = []
        for derived in node.derived:
            lead = derived[node.group.leader]
            lying = zip(op.outputs, lead.results, strict=True)
            parts = ((split, self._size(v, made(op, j, lead.loops)), self._size(v, split))
                     for j, (v, split) in enumerate(lying))  # fmt: skip
            more.append(sum(in_parts(*each) for each in parts))
        return np.array(more)

    def _scratch(self) -> tuple[Floats, dict[int, Floats]]:
        """At each moment, the compiler's bytes for any choice, and for each class [moment, option] those that depend on
        its option."""
        shape = self.question.shape
        home = {k: (g, pos) for g, group in enumerate(shape.groups) for pos, k in enumerate(group.ops)}
        fixed = np.zeros(self.steps)
        found: dict[tuple[int, int, int, float], list[tuple[int, int]]] = defaultdict(list)
        for one in shape.lives.scratch:
            fixed[one.first : one.last + 1] += one.bytes
            g, pos = home[one.op]
            if one.times:
                found[shape.folded.of[g], pos, one.operand, one.times].append((one.first, one.last))
        scratch: dict[int, Floats] = {}
        for (c, pos, operand, times), spans in found.items():
            node = self.question.nodes[c]
            value = shape.graph.ops[node.group.ops[pos]].inputs[operand]
            forms = (node.wanted(shape.graph, (c, pos, operand), o) for o in range(len(node.leads)))
            sizes = np.array([times * self._size(value, form) for form in forms])
            scratch[c] = scratch.get(c, 0.0) + np.outer(self._counts(spans), sizes)
        return fixed, scratch

    def _label(self, moment: int) -> str:
        graph, at = self.question.shape.graph, self.question.shape.lives.at
        where = next((graph.ops[k].where for k, m in enumerate(at) if m == moment), "")
        return where or ("the end of the step" if moment >= len(graph.ops) else f"operator {moment}")
