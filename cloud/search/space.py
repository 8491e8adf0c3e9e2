"""What is elastic: a `Space` of networks, a `Choice` of one, and its graph.

A network is an average pool that shrinks the input, and stages of convolutions. The first stage is the stem: one
convolution of stride 2. The first convolution of every other stage halves the resolution; those that follow are added
to their input, so that a stage without them computes the identity in their place. Each has a batch norm and a ReLU; an
average pool and a dense layer follow; forecasts read all positions instead of their mean. For a table the layers are
dense, all of the same resolution.

Elastic are the resolution (`shrink`), the number of stages, and for each stage its width, its depth, its kernel and the
bits of its weights. What is in front of the stages and behind them is the `Goal`'s.
`graph(space, choice)` is a network by itself; `supernet(space, shrink)` is the largest one, with masks as inputs that
make it compute any other of the same resolution, as in Cai et al. ("Once-for-All", ICLR 2020).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from cloud.errors import SearchError
from cloud.search.goal import CLASSES, Columns, Forecast, Goal
from cloud.zoo.build import BATCH, Builder
from lite_runtime.graph import Array

__all__ = ["BITS", "Choice", "Elastic", "Space", "Stage", "graph", "masks", "space_for", "supernet"]

BITS = (4, 8, 32)
"""Of weights: 4 and 8 with activations of 8 bits; 32: floats throughout."""


@dataclass(frozen=True, order=True)
class Stage:
    """One stage of a network."""

    width: int
    depth: int
    kernel: int
    bits: int = 8

    @property
    def genes(self) -> tuple[int, int, int, int]:
        """The fields in order."""
        return self.width, self.depth, self.kernel, self.bits


@dataclass(frozen=True, order=True)
class Choice:
    """One network of a space; `stages[0]` is the stem, of depth 1."""

    shrink: int
    stages: tuple[Stage, ...]

    @property
    def text(self) -> str:
        """In one line: "/2 16k5 24k3x2 32k3:4"; x: the depth if it is not 1, after a colon bits other than 8. Of dense
        layers without kernels: "32x2 16"."""
        parts = [
            str(s.width) + (f"k{s.kernel}" if s.kernel > 1 else "") + (f"x{s.depth}" if s.depth > 1 else "")
            + (f":{s.bits}" if s.bits != 8 else "")
            for s in self.stages
        ]  # fmt: skip
        return " ".join(parts if {s.kernel for s in self.stages} == {1} else [f"/{self.shrink}", *parts])

    def as_data(self) -> dict[str, Any]:
        """The choice as JSON data."""
        rows = [list(s.genes) for s in self.stages]
        return {"shrink": self.shrink, "stages": rows}

    @classmethod
    def of_data(cls, data: Any) -> Choice:
        """The choice that `as_data` wrote; raises ValueError, KeyError or TypeError for anything else."""
        return cls(int(data["shrink"]), tuple(Stage(*map(int, row)) for row in data["stages"]))


@dataclass(frozen=True)
class Elastic:
    """What a stage may be, each in rising order."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    bits: tuple[int, ...] = (8,)

    @property
    def options(self) -> tuple[tuple[int, ...], ...]:
        """In the order of the fields of `Stage`."""
        return self.widths, self.depths, self.kernels, self.bits


@dataclass(frozen=True)
class Space:
    """Networks for inputs of `shape` [channels, height, width] or [columns], whose last layer gives so many numbers.
    Inputs of height 1 are series: kernels, strides and pools then extend along the width alone. `columns`: of a
    table."""

    shape: tuple[int, ...]
    outputs: int
    stages: tuple[Elastic, ...]
    shrinks: tuple[int, ...] = (1, 2)
    lengths: tuple[int, ...] = ()
    """How many stages a network may have, in rising order; () is all of them."""
    goal: Goal = CLASSES
    columns: Columns | None = None
    name: str = field(default="found", compare=False)

    def __post_init__(self) -> None:
        if not self.stages or not self.shrinks:
            raise SearchError("space: expected at least a stem, and one shrink")
        object.__setattr__(self, "lengths", self.lengths or (len(self.stages),))
        if list(self.lengths) != sorted(set(self.lengths)) or not 1 <= self.lengths[0] <= self.lengths[-1]:
            raise SearchError(f"space: expected rising numbers of stages, got {list(self.lengths)}")
        if self.lengths[-1] != len(self.stages):
            raise SearchError(f"space: expected {len(self.stages)} as the last of lengths, got {list(self.lengths)}")
        for i, stage in enumerate(self.stages):
            for what, options in zip(("width", "depth", "kernel", "bits"), stage.options, strict=True):
                if not options or list(options) != sorted(set(options)) or options[0] < 1:
                    raise SearchError(f"space: stage {i}: expected rising values of {what}, got {list(options)}")
            if any(kernel % 2 == 0 for kernel in stage.kernels):
                raise SearchError(f"space: stage {i}: expected odd kernels, got {list(stage.kernels)}")
            if unknown := set(stage.bits) - set(BITS):
                raise SearchError(f"space: stage {i}: expected bits of {list(BITS)}, got {sorted(unknown)}")
        if self.stages[0].depths != (1,):
            raise SearchError(f"space: the stem is one convolution, got depths {list(self.stages[0].depths)}")
        if self.dense:
            if self.shrinks != (1,) or any(stage.kernels != (1,) for stage in self.stages):
                raise SearchError("space: layers for a table have neither kernels nor shrinks; leave these keys out")
        elif self.shape[-1] // max(self.shrinks) < 2 ** (len(self.stages) - 1):
            raise SearchError(
                f"space: an input of width {self.shape[-1]} cannot be halved {len(self.stages)} times after a "
                f"shrink of {max(self.shrinks)}; use fewer stages or a smaller shrink"
            )

    @property
    def dense(self) -> bool:
        """Whether inputs are rows of a table."""
        return len(self.shape) == 1

    @property
    def is_series(self) -> bool:
        """Whether inputs have height 1."""
        return not self.dense and self.shape[1] == 1

    @property
    def size(self) -> int:
        """How many choices there are."""
        ways = [int(np.prod([len(options) for options in stage.options])) for stage in self.stages]
        return len(self.shrinks) * sum(int(np.prod(ways[:length], dtype=object)) for length in self.lengths)

    @property
    def largest(self) -> Choice:
        """The choice whose weights all others share."""
        return self._end(-1)

    @property
    def smallest(self) -> Choice:
        """The least of everything."""
        return Choice(max(self.shrinks), self._end(0).stages[: self.lengths[0]])

    def _end(self, i: int) -> Choice:
        return Choice(min(self.shrinks), tuple(Stage(*(options[i] for options in s.options)) for s in self.stages))

    def random(self, draw: np.random.Generator) -> Choice:
        """A choice, each part drawn evenly."""
        shrink, length = int(draw.choice(self.shrinks)), int(draw.choice(self.lengths))
        return Choice(shrink, tuple(self._stage(s, draw) for s in self.stages[:length]))

    def _stage(self, elastic: Elastic, draw: np.random.Generator) -> Stage:
        return Stage(*(int(draw.choice(options)) for options in elastic.options))

    def mutated(self, choice: Choice, draw: np.random.Generator, share: float = 0.15) -> Choice:
        """`choice` with each part drawn anew with probability `share`, and at least one changed if the space has
        another."""
        options = [self.shrinks, self.lengths, *(options for s in self.stages for options in s.options)]
        length = len(choice.stages)
        whole = (*choice.stages, *(self._stage(s, draw) for s in self.stages[length:]))
        genes = [choice.shrink, length, *(n for s in whole for n in s.genes)]
        open_ = [i for i, ways in enumerate(options[: 2 + 4 * length]) if len(ways) > 1]
        if not open_:
            return choice
        for i in {i for i in open_ if draw.random() < share} or {int(draw.choice(open_))}:
            genes[i] = int(draw.choice([way for way in options[i] if way != genes[i]]))
        stages = [Stage(*genes[i : i + 4]) for i in range(2, len(genes), 4)]
        return Choice(genes[0], tuple(stages[: genes[1]]))

    def crossed(self, one: Choice, other: Choice, draw: np.random.Generator) -> Choice:
        """The shrink, the number of stages, and each stage from one of the two that has it."""
        pick = [bool(draw.integers(2)) for _ in range(len(self.stages) + 2)]
        whole = one if pick[1] else other
        pairs = zip(pick[2:], one.stages, other.stages, strict=False)
        shared = [a if first else b for first, a, b in pairs][: len(whole.stages)]
        return Choice(one.shrink if pick[0] else other.shrink, (*shared, *whole.stages[len(shared) :]))

    def has(self, choice: Choice) -> bool:
        """Whether it is a choice of this space."""
        if choice.shrink not in self.shrinks or len(choice.stages) not in self.lengths:
            return False
        pairs = zip(choice.stages, self.stages, strict=False)
        return all(
            value in options
            for stage, elastic in pairs
            for value, options in zip(stage.genes, elastic.options, strict=True)
        )


def space_for(
    kind: str, shape: tuple[int, ...], outputs: int, bits: tuple[int, ...] = (8,), goal: Goal = CLASSES,
    columns: Columns | None = None,
) -> Space:  # fmt: skip
    """The space for a kind of input: "image", "sound" (frames by features), "series" or "forecast" (channels over
    time), or "table"."""
    if kind not in _SPACES:
        raise SearchError(f"task.kind: expected one of {', '.join(_SPACES)}, got {kind!r}")
    shrinks, rows = _SPACES[kind]
    stages = tuple(Elastic(*row, bits) for row in rows)
    deepest = [n for n in range(1, len(stages) + 1) if kind == "table" or shape[-1] // max(shrinks) >= 2 ** (n - 1)]
    if not deepest:
        raise SearchError(f"expected inputs of width 4 or more for a search, got shape {list(shape)}")
    most = deepest[-1]
    least = 1 if kind in ("table", "forecast") else min(2, most)
    return Space(shape, outputs, stages[:most], shrinks, tuple(range(least, most + 1)), goal, columns)


_Row = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
_SPACES: dict[str, tuple[tuple[int, ...], tuple[_Row, ...]]] = {
    "image": ((1, 2), (
        ((4, 8, 16), (1,), (3, 5)),
        ((8, 16, 24, 32), (1, 2), (3, 5)),
        ((16, 32, 48), (1, 2), (3, 5)),
    )),
    "sound": ((1, 2), (
        ((8, 16, 24, 32), (1,), (3, 5, 7)),
        ((16, 24, 32, 48), (1, 2), (3, 5)),
        ((16, 32, 48, 64), (1, 2), (3,)),
    )),
    "series": ((1, 2, 4), (
        ((8, 16, 32), (1,), (3, 5, 9)),
        ((16, 32, 48, 64), (1, 2), (3, 5, 9)),
        ((16, 32, 64), (1, 2), (3, 5)),
    )),
    "forecast": ((1, 2, 4), (
        ((4, 8, 16), (1,), (3, 5, 9)),
        ((8, 16, 32), (1, 2), (3, 5)),
        ((8, 16, 32), (1, 2), (3, 5)),
    )),
    "table": ((1,), (
        ((8, 16, 32, 64), (1,), (1,)),
        ((8, 16, 32, 64), (1, 2, 3), (1,)),
        ((8, 16, 32), (1, 2), (1,)),
    )),
}  # fmt: skip
"""Shrinks; (widths, depths, kernels) of the stages, the stem first. Vectors have 4 to 16 lanes, so that widths between
those here cost as much as the next larger one."""


# -- graphs ------------------------------------------------------------------------------------------------------------


def graph(space: Space, choice: Choice, seed: int = 0) -> ir.Model:
    """The network as IR, newly initialised: `x` [batch, *shape] -> the output of the goal."""
    b = Builder(space.name, seed)
    return b.model(**{space.goal.output: _network(b, space, choice, b.input("x", (BATCH, *space.shape)), None)})


MASK, LAYER = "mask:", "layer"
"""How the names of the supernet's further inputs begin, and the names of nodes with weights end."""


def supernet(space: Space, shrink: int, seed: int = 0) -> ir.Model:
    """The largest network with this shrink. Beside `x` it has the inputs that `masks` makes; where all are 1, it
    computes `graph(space, space.largest)`. Its batch norms have momentum 0: after a batch in training form, their
    statistics are those of that batch."""
    b = Builder(f"{space.name} supernet", seed)
    x = b.input("x", (BATCH, *space.shape))
    whole = replace(space.largest, shrink=shrink)
    gates = {f"{MASK}{name}": b.input(f"{MASK}{name}", shape) for name, shape in _mask_shapes(space, whole)}
    return b.model(**{space.goal.output: _network(b, space, whole, x, gates)})


def masks(space: Space, choice: Choice) -> dict[str, Array]:
    """The inputs with which the supernet computes `choice`: float32, 0 or 1."""
    largest = space.largest
    made: dict[str, Array] = {}
    whole = (*choice.stages, *largest.stages[len(choice.stages) :])
    for i, (stage, most) in enumerate(zip(whole, largest.stages, strict=True)):
        width = (np.arange(most.width) < stage.width).astype(np.float32)
        around = (most.kernel - stage.kernel) // 2
        line = np.zeros(most.kernel, np.float32)
        line[around : most.kernel - around] = 1
        kernel = line[None] if space.is_series else np.outer(line, line)
        made[f"{MASK}width{i}"] = width.reshape(_wide(space, most.width))
        if not space.dense:
            made[f"{MASK}kernel{i}"] = np.ascontiguousarray(kernel[None, None])
        for j in range(1, most.depth):
            made[f"{MASK}gate{i}.{j}"] = np.array(j < stage.depth, np.float32)
    for length in space.lengths[:-1]:
        made[f"{MASK}exit{length}"] = np.array(len(choice.stages) == length, np.float32)
    return made


def _mask_shapes(space: Space, largest: Choice) -> Iterator[tuple[str, tuple[int, ...]]]:
    for i, stage in enumerate(largest.stages):
        yield f"width{i}", _wide(space, stage.width)
        if not space.dense:
            yield f"kernel{i}", (1, 1, *_extent(space, stage.kernel))
        yield from ((f"gate{i}.{j}", ()) for j in range(1, stage.depth))
    yield from ((f"exit{length}", ()) for length in space.lengths[:-1])


def _wide(space: Space, width: int) -> tuple[int, ...]:
    """The shape of one number for each channel."""
    return (1, width) if space.dense else (1, width, 1, 1)


def _extent(space: Space, size: int) -> tuple[int, int]:
    """A kernel, stride or pool: along the width alone for series."""
    return (1, size) if space.is_series else (size, size)


def _network(b: Builder, space: Space, choice: Choice, given: ir.Value, gates: dict[str, ir.Value] | None) -> ir.Value:
    exits: list[tuple[ir.Value, ir.Value]] = []
    x = given if space.columns is None else space.columns.standardised(b, given)
    x = space.goal.enter(b, x)
    if choice.shrink > 1:
        pool = _extent(space, choice.shrink)
        sizes = [n // k for n, k in zip(space.shape[1:], pool, strict=True)]
        shape: list[int | str] = [BATCH, space.shape[0], *sizes]
        x = b.op("AveragePool", x, name="shrink", shape=shape, kernel_shape=pool, strides=pool)
    for i, stage in enumerate(choice.stages):
        for j in range(stage.depth):
            y = _layer(b, space, x, stage, f"stage{i}.{j}", 1 if j else 2, i, gates)
            if j:
                if gates is not None:
                    y = b.op("Mul", y, gates[f"{MASK}gate{i}.{j}"], name=f"stage{i}.{j}.gated")
                y = b.add(x, y, name=f"stage{i}.{j}.add")
            x = b.relu(y, name=f"stage{i}.{j}.relu")
            if gates is not None:
                x = b.op("Mul", x, gates[f"{MASK}width{i}"], name=f"stage{i}.{j}.masked")
        if gates is not None and i + 1 in space.lengths[:-1]:
            exits.append((_head(b, space, x, i + 1), gates[f"{MASK}exit{i + 1}"]))
    found = _head(b, space, x, len(choice.stages))
    for n, (other, gate) in enumerate(exits):  # found + gate * (other - found)
        apart = b.op("Sub", other, found, name=f"exit{n}.apart")
        found = b.add(found, b.op("Mul", apart, gate, name=f"exit{n}.gated"), name=f"exit{n}.chosen")
    return space.goal.leave(b, found, given)


def _head(b: Builder, space: Space, x: ir.Value, length: int) -> ir.Value:
    """The numbers after so many stages; each number of stages has a dense layer of its own. A forecast depends on where
    something is; for classes the mean over places is enough."""
    if not space.dense:
        flat = b.flatten if isinstance(space.goal, Forecast) else b.global_average_pool
        x = flat(x, name=f"pool{length}")
    return b.dense(x, space.outputs, name=f"head{length}")


def _layer(
    b: Builder, space: Space, x: ir.Value, stage: Stage, name: str, stride: int, i: int,
    gates: dict[str, ir.Value] | None,
) -> ir.Value:  # fmt: skip
    """Convolution or dense layer, and batch norm. In a supernet the weights of convolutions are masked to the kernel,
    and batch norms have momentum 0."""
    if space.dense:
        y = b.dense(x, stage.width, name=f"{name}.{LAYER}")
    else:
        strides = _extent(space, stride)
        y = b.conv(x, stage.width, _extent(space, stage.kernel), stride=strides, name=f"{name}.{LAYER}")
        if gates is not None:
            node = y.producer()
            assert node is not None
            weight = node.inputs[1]
            assert weight is not None and weight.const_value is not None
            shape = weight.const_value.numpy().shape
            node.replace_input_with(1, masked := _before(b, node, weight, gates[f"{MASK}kernel{i}"], shape))
            masked.name = f"{name}.{LAYER}.kernel"
    return b.batch_norm(y, name=f"{name}.bn", momentum=0.9 if gates is None else 0.0)


def _before(b: Builder, node: ir.Node, weight: ir.Value, mask: ir.Value, shape: Sequence[int]) -> ir.Value:
    """weight * mask, computed before `node`."""
    made = ir.node("Mul", [weight, mask], name=f"{weight.name}.masked")
    value = made.outputs[0]
    value.type, value.shape = ir.TensorType(ir.DataType.FLOAT), ir.Shape(shape)
    assert node.graph is not None
    node.graph.insert_before(node, made)
    return value
