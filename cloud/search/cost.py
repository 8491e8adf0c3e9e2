"""What a network costs on its device, before it is trained.

A candidate is converted with newly initialised weights, so that its cost is that of the very program that the runtime
would execute: which kernels the planner chooses for these shapes, what is fused, where tensors lie in the arena.

`Measured` is this machine: a table of the steps' times, each measured by the runtime in networks that have it. A step
is known by its kernel, its operations, the bytes that it accesses and its weights, which together tell shapes apart;
what a run costs besides its steps was measured with the same networks. Steps that no measured network has are
interpolated between steps of the same kernel (a Gaussian process over the logarithms of these numbers; Rasmussen and
Williams, "Gaussian Processes for Machine Learning", 2006, chapter 2), or else the network is measured. The table stays
in the runtime's cache folder, by processor and by the digest of the kernels.

`Modelled` is another target, whose programs are planned here: the planner's estimate of each step by operations, bytes,
and lanes of its vectors (`lite_runtime.planning.cost`), with integer products at the rate of the target's own
instructions. It is an estimate for comparisons between networks, not of milliseconds.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnx_ir as ir

import converter
import lite_runtime
from cloud.errors import SearchError
from cloud.search.goal import ENDS
from cloud.search.space import Choice, Space, graph
from converter.quantize import Options
from lite_runtime import bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from lite_runtime.native import build, trust
from lite_runtime.native.target import host
from lite_runtime.planning import cost as planning
from lite_runtime.planning.listing import planned
from lite_runtime.running.profiling import Row
from lite_runtime.targets import AHEAD, TARGETS, Target

__all__ = ["Cost", "Measured", "Modelled", "Oracle", "bundle_of", "latencies", "latency", "oracle_of", "program_of"]

HOST = "host"
"""The device that is this machine."""
ROWS = 8
"""Random rows by which candidates are quantised: ranges do not change what a program costs."""
REPEATS, BETWEEN, ROUNDS, KEEP = 40, 10, 8, 9
"""Timed runs of a profile, ordinary runs before each of them (without these, branch predictors have seen other code),
profiles of a network, and measurements of a step that are kept; of a network's profiles the fastest counts for each
step, of a step's measurements in several networks the median."""
_PLAIN = Options(mode="int8", method="minmax", equalize=False, bias_correction=False, gptq=False)
_VERSION = 2

Step = tuple[str, int, int, int]
"""Kernel, operations, bytes, elements of the largest constant that its node reads."""


class Cost(NamedTuple):
    """seconds: of a run with one row by one thread; file_bytes: of the bundle; arena_bytes: of the run's memory."""

    seconds: float
    file_bytes: int
    arena_bytes: int


class Oracle(Protocol):
    """What tells the cost of networks."""

    @property
    def device(self) -> str:
        """Its name."""

    def cost(self, space: Space, choice: Choice) -> Cost:
        """The cost of a choice."""

    def of_bundle(self, made: bytes) -> Cost:
        """The cost of a bundle, with one row."""


def oracle_of(device: str) -> Oracle:
    """The oracle of a device: "host", or the name of a target. Raises SearchError for any other name."""
    if device == HOST:
        return Measured()
    known = {target.name: target for target in (*TARGETS, *AHEAD)}
    if device not in known:
        raise SearchError(f"device: expected {HOST} (this machine) or a target of {', '.join(known)}, got {device!r}")
    return Modelled(known[device])


# -- candidates --------------------------------------------------------------------------------------------------------


def bundle_of(model: ir.Model, floats: Sequence[str] = (), rows: int = ROWS) -> bytes:
    """An int8 bundle of a newly initialised network, with nodes that match the globs `floats` in floats; calibrated by
    random rows."""
    x = model.graph.inputs[0]
    assert x.shape is not None
    shape = [int(n) if isinstance(n, int) else rows for n in x.shape]
    given = {str(x.name): np.random.default_rng(0).standard_normal(shape, np.float32)}
    if "*" in floats:
        return converter.convert(model).bundle
    return converter.convert(model, quantize=replace(_PLAIN, keep_float=tuple(floats)), calibration=given).bundle


def floats_of(choice: Choice) -> tuple[str, ...]:
    """The globs of nodes that the choice keeps in floats."""
    wide = [i for i, stage in enumerate(choice.stages) if stage.bits == 32]
    return ("*",) if len(wide) == len(choice.stages) else (*ENDS, *(f"stage{i}.*" for i in wide))


def saved_bytes(space: Space, choice: Choice) -> int:
    """What weights of four bits save in the file: half a byte for each weight of filters with 32 weights or more."""
    saved, before = 0, space.shape[0]
    for stage in choice.stages:
        area = stage.kernel if space.is_series else stage.kernel**2
        for j in range(stage.depth):
            each = (stage.width if j else before) * area
            saved += stage.width * each // 2 if stage.bits == 4 and each >= 32 else 0
        before = stage.width
    return saved


def _one_row(held: bundle.Bundle) -> dict[str, Array]:
    made = {}
    for value in held.at_first("predict").inputs:
        shape = [d if isinstance(d, int) else 1 for d in value.shape or ()]
        if any(d is None for d in value.shape or (None,)):
            raise SearchError(f"input {value.name!r}: expected known sizes but for the batch, got {value.shape}")
        made[value.name] = np.random.default_rng(1).standard_normal(shape).astype(value.dtype)
    return made


# -- this machine ------------------------------------------------------------------------------------------------------


def program_of(made: bytes) -> tuple[lite_runtime.Model, dict[str, Array], list[Step]]:
    """A bundle loaded with one thread, one row for it, and the steps of its run."""
    model = lite_runtime.load(made, threads=1)
    row = _one_row(model.bundle)
    return model, row, _steps(model, model.profile(row, repeats=1))


def _steps(model: lite_runtime.Model, rows: Sequence[Row]) -> list[Step]:
    graph = model.bundle.at_first("predict")
    sizes = {name: array.size for name, array in graph.constants.items()}
    weights = {node.name or node.outputs[0]: max(sizes.get(n, 0) for n in (*node.inputs, "")) for node in graph.nodes}
    return [(r.kernel, r.operations, r.bytes, weights.get(r.node.partition(" ")[2], 0)) for r in rows]


def latencies(
    models: Sequence[tuple[lite_runtime.Model, Mapping[str, Array]]], rounds: int = 25, seconds: float = 0.002
) -> list[float]:
    """Seconds of a run of each model, which take turns of so many seconds: the lower quartile over `rounds`. A
    disturbance that lasts longer than a turn slows all of them in that round."""
    repeats = []
    for model, row in models:
        model.run(row)
        repeats.append(max(1, round(seconds / max(_turn(model, row, 3), 1e-7))))
    taken = [
        [_turn(model, row, count) for (model, row), count in zip(models, repeats, strict=True)] for _ in range(rounds)
    ]
    return [float(each) for each in np.quantile(taken, 0.25, axis=0)]


def latency(model: lite_runtime.Model, row: Mapping[str, Array], rounds: int = 25, seconds: float = 0.002) -> float:
    """`latencies` of one model."""
    return latencies([(model, row)], rounds, seconds)[0]


def _turn(model: lite_runtime.Model, row: Mapping[str, Array], repeats: int) -> float:
    model.run(row)  # its weights are in the cache again
    start = perf_counter()
    for _ in range(repeats):
        model.run(row)
    return (perf_counter() - start) / repeats


@dataclass
class Measured:
    """This machine. `unknown`: how many steps were interpolated so far. Raises SearchError where native kernels cannot
    run: the times of references say nothing."""

    device: str = HOST
    path: Path | None = None
    steps: dict[Step, list[float]] = field(default_factory=dict)
    besides: list[float] = field(default_factory=list)
    """Seconds of runs beyond the sum of their steps, by the networks that were measured."""
    unknown: int = 0
    _known: dict[tuple[Space, Choice], Cost] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if host() is None or not build.available():
            raise SearchError(
                f"device {HOST}: native kernels cannot run here, {build.remedy()}; or name another device"
            )
        if self.path is None:
            self.path = Path(build.cache_folder()) / f"steps-{_machine()}.json"
        self._read()

    def cost(self, space: Space, choice: Choice) -> Cost:
        """See `Oracle`: networks with unknown steps are measured."""
        if (known := self._known.get((space, choice))) is not None:
            return known
        found = self.of_bundle(bundle_of(graph(space, choice), floats_of(choice)))
        found = found._replace(file_bytes=found.file_bytes - saved_bytes(space, choice))
        self._known[space, choice] = found
        return found

    def of_bundle(self, made: bytes) -> Cost:
        """See `Oracle`."""
        model, row, steps = program_of(made)
        seconds = self.predicted(steps)
        if seconds is None:
            self.learn(model, row)
            seconds = self.predicted(steps)
            assert seconds is not None
        return Cost(seconds, len(made), model.cost(row).arena_bytes)

    def predicted(self, steps: Sequence[Step]) -> float | None:
        """Seconds of a run with these steps; None if one is neither known nor between known ones."""
        if not self.besides:
            return None
        total = statistics.median(self.besides)
        for step in steps:
            seconds = self._seconds(step)
            if seconds is None:
                return None
            total += seconds
        return total

    def learn(self, model: lite_runtime.Model, row: Mapping[str, Array]) -> None:
        """Measure a network: each of its steps, and the whole run."""
        fastest: dict[int, float] = {}
        rows: list[Row] = []
        whole = []
        for _ in range(ROUNDS):
            whole.append(latency(model, row, rounds=3, seconds=0.001))
            rows = model.profile(row, repeats=REPEATS, between=BETWEEN)
            for i, r in enumerate(rows):
                fastest[i] = min(r.seconds, fastest.get(i, r.seconds))
        for i, step in enumerate(_steps(model, rows)):
            times = self.steps.setdefault(step, [])
            if len(times) < KEEP:
                times.append(fastest[i])
        if len(self.besides) < 10 * KEEP:
            self.besides.append(max(min(whole) - sum(fastest.values()), 0.0))

    def warm(self, space: Space, count: int, seed: int = 0) -> int:
        """Measure up to `count` random networks of the space, those that have steps measured fewer than three times;
        returns how many were."""
        draw, measured = np.random.default_rng(seed), 0
        for _ in range(count):
            choice = space.random(draw)
            model, row, steps = program_of(bundle_of(graph(space, choice), floats_of(choice)))
            if any(len(self.steps.get(step, ())) < 3 for step in steps):
                self.learn(model, row)
                measured += 1
        self.save()
        return measured

    def save(self) -> None:
        """Keep the table for later searches; where the folder cannot be written or trusted, it is measured anew."""
        rows = [[*step, *times] for step, times in self.steps.items()]
        body = {"version": _VERSION, "kernels": build.identity(), "steps": rows, "besides": self.besides}
        try:
            trust.write(str(self.path), json.dumps(body).encode())
        except (OSError, MsedgeError):
            return

    def _seconds(self, step: Step) -> float | None:
        times = self.steps.get(step)
        if times:
            return statistics.median(times)
        alike = {other: statistics.median(times) for other, times in self.steps.items() if other[0] == step[0]}
        size = [other[1] or other[2] for other in alike]
        if not size or not min(size) <= (step[1] or step[2]) <= max(size):
            return None
        self.unknown += 1
        return _between(alike, [len(self.steps[other]) for other in alike], step)

    def _read(self) -> None:
        try:
            with trust.opened(str(self.path)) as file:
                held = json.load(file)
            if held["version"] != _VERSION or held["kernels"] != build.identity():
                return
            steps = {
                (str(kernel), int(operations), int(nbytes), int(weights)): [float(t) for t in times]
                for kernel, operations, nbytes, weights, *times in held["steps"]
            }
            besides = [float(t) for t in held["besides"]]
        except (OSError, ValueError, TypeError, KeyError, IndexError):
            return
        except trust.TrustError as problem:
            trust.warn(problem, "steps are measured again")
            return
        if any(not times or min(*step[1:], *times) < 0 for step, times in steps.items()):
            return
        self.steps, self.besides = steps, besides


_REACH, _WAVES, _NOISE = 1.0, 0.3, 0.1
"""Of the Gaussian process, in natural logarithms: how far a step tells of others, by how much times differ from a power
of the numbers, and by how much measurements of one step do."""


def _between(alike: Mapping[Step, float], counts: Sequence[int], step: Step) -> float:
    """Seconds of a step by those of others of its kernel, `counts` measurements each: a power of operations, bytes and
    weights, and what nearby steps differ from it."""

    def numbers(steps: Sequence[Step]) -> Array:
        return np.log1p(np.array([each[1:] for each in steps], np.float64))

    x, mine, y = numbers(list(alike)), numbers([step]), np.log(np.maximum(list(alike.values()), 1e-10))
    middle = np.append(x.mean(0), 0.0)
    columns, own = (np.column_stack([each, np.ones(len(each))]) - middle for each in (x, mine))
    slopes = np.linalg.solve(columns.T @ columns + 0.01 * np.eye(4), columns.T @ (y - y.mean()))

    def covariance(others: Array) -> Array:
        return np.asarray(_WAVES**2 * np.exp(-0.5 * ((others[:, None] - x) ** 2).sum(2) / _REACH**2))

    noisy = covariance(x) + np.diag(_NOISE**2 / np.array(counts))
    rest = np.linalg.solve(noisy, y - y.mean() - columns @ slopes)
    return float(np.exp(y.mean() + own @ slopes + covariance(mine) @ rest)[0])


def _machine() -> str:
    """The processor and what the runtime uses of it, as part of a file's name."""
    import hashlib

    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    target = host()
    facts = f"{name} {os.cpu_count()} {target.name if target else ''}"
    return f"{target.name if target else 'none'}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


# -- other targets -----------------------------------------------------------------------------------------------------

_PRODUCTS = {
    "vpdpbusd": 1.0, "usdot": 1.0, "sdot": 1.0, "vpmaddwd": 0.5, "wasm.dot": 0.4, "wasm.relaxed_dot": 0.8,
    "smull": 0.35, "vmull": 0.35, "vwmul": 0.35, "smlad": 0.3,
}  # fmt: skip
"""Rate of 8-bit products with the target's instructions, relative to one instruction that sums four of them: two
products an instruction take twice the instructions, and widening first takes one more."""


@dataclass
class Modelled:
    """A target by the planner's estimates."""

    target: Target
    _known: dict[tuple[Space, Choice], Cost] = field(default_factory=dict, repr=False)

    @property
    def device(self) -> str:
        """The target's name."""
        return self.target.name

    def cost(self, space: Space, choice: Choice) -> Cost:
        """See `Oracle`."""
        if (known := self._known.get((space, choice))) is None:
            known = self.of_bundle(bundle_of(graph(space, choice), floats_of(choice)))
            known = known._replace(file_bytes=known.file_bytes - saved_bytes(space, choice))
            self._known[space, choice] = known
        return known

    def of_bundle(self, made: bytes) -> Cost:
        """See `Oracle`."""
        held = bundle.read(made)
        row = _one_row(held)
        plan = planned(held.at_first("predict"), {name: x.shape for name, x in row.items()}, target=self.target)
        slow = _PRODUCTS.get(self.target.dot, 0.25)
        lanes = self.target.lanes if self.target.shape.vectors else 1
        seconds = sum(
            planning.seconds(r.name, round(r.operations / (slow if _on_bytes(r.name) else 1.0)), r.bytes, lanes)
            for r in plan.records
        )
        return Cost(seconds, len(made), plan.arena_bytes)


def _on_bytes(kernel: str) -> bool:
    """Whether a kernel multiplies 8-bit integers."""
    return kernel.partition(".")[0] in ("qgemm", "qdepthwise", "qrecurrent", "qwide")


def as_data(cost: Cost) -> dict[str, Any]:
    """The cost as JSON data."""
    return cost._asdict()
