"""Which nodes lose accuracy, measured: for each, the model with that node alone quantised.

The noise of single nodes, as energy relative to the output's, adds up to nearly that of the fully quantised model, so
nodes are ranked by it; the score (top-1, …) changes in jumps and is only recorded. `Variants` makes quantised forms of
one model without calibrating again; the budget search uses it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from converter.errors import QuantizeError
from converter.ir import build
from converter.quantize.accuracy import metrics
from converter.quantize.accuracy.metrics import Evaluator, Outputs
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.observe import Runner, Statistics, channel_axis, observable, observe
from converter.quantize.options import Options
from converter.quantize.record import Record
from converter.quantize.rounding import gptq
from converter.quantize.rounding.weights import SMALLEST, Bits, Quantized, places, quantize_place
from converter.quantize.schemes import Plan, plan
from converter.quantize.state import Progress, State
from converter.quantize.steps import STEPS

__all__ = ["Progress", "Sensitivity", "Variant", "Variants", "measure", "noise"]

_SKIPPED = ("equalise", "plan", "observe", "round weights by what they meet", "choose how")
"""Steps of the quantiser that `Variants` runs once for all variants, or replaces by cached results."""


@dataclass(frozen=True)
class Sensitivity:
    """The effect on the model's outputs of quantising only one node."""

    name: str
    op: str
    snr: float
    """Decibels, of the worst output; inf when nothing changes."""
    score: float
    """The evaluator's metric."""
    drop: float
    """How much worse the score is than the float model's."""

    @property
    def noise(self) -> float:
        """Noise energy relative to the signal's."""
        return 0.0 if math.isinf(self.snr) and self.snr > 0 else 10 ** (-self.snr / 10)


@dataclass(frozen=True)
class Variant:
    """A quantised form of a model."""

    model: ir.Model
    record: Record
    float_nodes: tuple[str, ...]
    """Nodes left in float."""
    weight_nodes: tuple[str, ...]
    """Nodes of which only the weights are integers."""


class Variants:
    """Quantised forms of `model` (IR after `converter.pass_lists.PREPARE`, not changed), all from one calibration.

    Raises QuantizeError as `quantize` does.
    """

    def __init__(self, model: ir.Model, options: Options, samples: Samples | None, *, threads: int = 0) -> None:
        if options.static and samples is None:
            raise QuantizeError(f"mode {options.mode!r} needs calibration data to measure activations; give some")
        self.options, self._samples, self._threads = options, samples, threads
        self.reference = model.clone()
        """The float model that all variants are made from: equalised if the options say so."""
        build.adopt(self.reference)
        self._ready: dict[tuple[Bits, int], dict[str, Quantized]] = {}
        state = State(self.reference, options, samples, Record(options.mode))
        for step in STEPS:
            if step.name in _SKIPPED and step.applies(options):
                step.run(state)
        self._statistics: dict[str, Statistics] = dict(state.statistics)
        self._way, self._ways = state.way, state.ways
        if state.weights:
            self._ready[4 if options.mode == "w4" else 8, options.block] = state.weights

    def nodes(self) -> dict[str, str]:
        """Name -> operator of every node whose precision is a choice, in graph order."""
        if not self.options.static:
            least = 0 if self.options.mode == "dynamic" else SMALLEST
            return {build.title(n): n.op_type for n in self.reference.graph if any(True for _ in places(n, least))}
        found = plan(self.reference, self.options)
        return {build.title(node): node.op_type for node in found.integer if _chooses(node, found)}

    @property
    def steps_to_weights(self) -> bool:
        """Whether a node has an intermediate step before float: integer weights with float arithmetic in the static
        modes, eight bits instead of four in w4."""
        return self.options.static or self.options.mode == "w4"

    def make(
        self, *, float_nodes: Iterable[str] = (), weight_nodes: Iterable[str] = (), bias_correction: bool | None = None
    ) -> Variant:
        """The model with `float_nodes` (by name) left in float, and only 8-bit integer weights in `weight_nodes`."""
        kept, weights = tuple(float_nodes), tuple(weight_nodes)
        options = replace(
            self.options,
            equalize=False,
            gptq=False,
            bias_correction=self.options.bias_correction if bias_correction is None else bias_correction,
            keep_float=(*self.options.keep_float, *map(_exactly, kept)),
            weight_only=(*self.options.weight_only, *map(_exactly, weights)),
        )
        record = Record(options.mode)
        state = State(self.reference.clone(), options, self._samples, record, way=self._way, ways=self._ways)
        build.adopt(state.model)
        if options.static:
            state.plan = plan(state.model, options)
            state.statistics = self._observed(state)
        state.weights = self._weights(state.model, set(weights))
        for step in STEPS:
            if step.name not in _SKIPPED and step.applies(options):
                step.run(state)
        return Variant(state.model, state.record, kept, weights)

    def _weights(self, model: ir.Model, wider: set[str]) -> dict[str, Quantized]:
        """Weights that GPTQ has rounded; in w4, those of nodes in `wider` have eight bits."""
        if self.options.mode == "dynamic":
            return {}
        found = dict(self._rounded(4 if self.options.mode == "w4" else 8, self.options.block))
        if self.options.mode != "w4":
            return found
        for node in build.nodes(model):
            if build.title(node) in wider:
                for place, value, weight in places(node):
                    name = value.name or ""
                    made = self._rounded(8, self.options.block).get(name)
                    found[name] = made or quantize_place(weight, place, bits=8, block=self.options.block, name=name)
        return found

    def _rounded(self, bits: Bits, block: int) -> dict[str, Quantized]:
        """GPTQ's result for all weights, computed once."""
        if not self.options.gptq or self._samples is None:
            return {}
        if (bits, block) not in self._ready:
            self._ready[bits, block] = gptq.round_weights(
                self.reference,
                self._samples,
                bits=bits,
                block_size=block,
                smallest=1 if self.options.static else SMALLEST,
                threads=self._threads,
            )
        return self._ready[bits, block]

    def _observed(self, state: State) -> dict[str, Statistics]:
        """Statistics of the tensors that the plan quantises; each is observed once for all variants."""
        assert self._samples is not None
        known = observable(self.reference)
        wanted = [v.name or "" for v in state.plan.tensors]
        missing = [name for name in wanted if name not in self._statistics]
        if missing:
            runner = Runner(self.reference, missing, threads=self._threads)
            axes = {name: channel_axis(known[name]) for name in missing}
            self._statistics |= observe(runner, self._samples, axes)
        return {name: self._statistics[name] for name in wanted if name in self._statistics}


def _chooses(node: ir.Node, found: Plan) -> bool:
    """Whether a node's precision is a choice: it computes, and does not just move data or follow another node."""
    if found.integer[node].role in ("movement", "reader"):
        return False
    return any(v in found.tensors for v in node.inputs if v is not None)


_SPECIAL = str.maketrans({"*": "[*]", "?": "[?]", "[": "[[]"})


def _exactly(name: str) -> str:
    """A glob that matches only this name."""
    return name.translate(_SPECIAL)


def noise(reference: Outputs, outputs: Outputs) -> float:
    """The least signal to noise, in decibels, of any output."""
    return min(metrics.snr(reference[name], outputs[name]) for name in reference)


def measure(
    variants: Variants, evaluate: Evaluator, progress: Progress | None = None, *, weights: bool = False
) -> list[Sensitivity]:
    """Every node quantised alone, the most harmful first (by noise; nodes of equal noise stay in graph order).

    `weights`: only the weights of that node (`Variants.make(weight_nodes=...)`).
    """
    nodes = variants.nodes()
    what, found = "weights' sensitivity" if weights else "sensitivity", []
    for done, (name, op) in enumerate(nodes.items()):
        if progress is not None:
            progress(what, done, len(nodes))
        others = [n for n in nodes if n != name]
        variant = variants.make(float_nodes=others, weight_nodes=[name] if weights else [])
        outputs = evaluate.outputs(variant.model)
        score = evaluate.score(outputs)
        found.append(
            Sensitivity(name, op, noise(evaluate.reference, outputs), score, evaluate.metric.drop(evaluate.base, score))
        )
    if progress is not None:
        progress(what, len(nodes), len(nodes))
    return sorted(found, key=lambda s: -s.noise)
