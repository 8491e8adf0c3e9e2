"""The file of an ensemble: which models compute what of which tensors. Pure functions.

Keys and their meaning are those of Triton's model configuration, as TOML or JSON:

    platform = "ensemble"               # may be left out
    max_batch_size = 32                 # may be left out: the most rows of a request; 0: no axis of rows

    [[input]]                           # of the ensemble
    name = "IMAGE"
    data_type = "TYPE_STRING"           # may be left out, as dims: both follow from the models
    dims = [1]                          # without the axis of rows, if there is one
    reshape = {shape = []}              # may be left out: the shape that the models get

    [[output]]
    name = "CLASS"

    [[ensemble_scheduling.step]]
    model_name = "preprocess"
    model_version = -1                  # -1, the default: as the model's own routing says
    input_map = {image = "IMAGE"}       # the model's name of a tensor = the ensemble's
    output_map = {x = "prepared"}

    [[ensemble_scheduling.step]]
    model_name = "classify"
    model_label = "stable"              # not one of Triton's: a label in the place of a version
    input_map = {x = "prepared"}
    output_map = {scores = "CLASS"}

https://github.com/triton-inference-server/server/blob/main/docs/user_guide/ensemble_models.md
"""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from graphlib import CycleError, TopologicalSorter
from math import prod
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from edge.gateway.errors import GatewayError
from edge.gateway.models.names import LABEL, NAME, shown
from edge.gateway.ports import DATATYPES
from federated.tables import Reader, Table, closest

__all__ = ["MOST_STEPS", "End", "Scheduling", "Step", "parse", "read"]

MOST_STEPS = 64
MOST_TENSORS = 1024
"""Entries of one input_map or output_map."""
TYPES: Mapping[str, str] = {f"TYPE_{'STRING' if name == 'BYTES' else name}": name for name in DATATYPES}
"""The protocol's datatypes by their names in configurations."""


class End(NamedTuple):
    """An input or output of the ensemble as the file declares it. datatype: "" if it says none; dims: None if it says
    none, -1: any size; shape: of the same elements inside the ensemble, None: `dims`. Both without the axis of rows."""

    name: str
    datatype: str = ""
    dims: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


class Step(NamedTuple):
    """number: its place in the file, from 1. version: a number, a label, or "": as the model's own routing says.
    inputs, outputs: the ensemble's names of tensors by the model's. after, before: indices of the steps that it needs,
    and of those that need it."""

    number: int
    model: str
    version: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    after: tuple[int, ...] = ()
    before: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"step {self.number} (model {self.model!r})"


class Scheduling(NamedTuple):
    """A valid graph. steps: in an order in which each comes after those that it needs. uses: how many steps read a
    tensor. max_batch: None if the file says nothing. document: the steps as in the file."""

    inputs: Mapping[str, End]
    outputs: Mapping[str, End]
    steps: tuple[Step, ...]
    uses: Mapping[str, int]
    max_batch: int | None
    document: Mapping[str, Any]

    @property
    def models(self) -> frozenset[str]:
        """The names of the models."""
        return frozenset(step.model for step in self.steps)


# -- the format of the file --------------------------------------------------------------------------------------------

_Name = Annotated[str, Meta(min_length=1, max_length=255, description="a name of up to 255 characters")]
_Dim = Annotated[int, Meta(ge=-1, le=2**40)]
_Dims = Annotated[list[_Dim], Meta(max_length=32, description="a list of up to 32 sizes, -1: any size")]
_Map = Annotated[
    Mapping[_Name, _Name],
    Meta(min_length=1, max_length=MOST_TENSORS, description="a table of at least one tensor: the model's name = the"
         " ensemble's"),
]  # fmt: skip


class _Reshape(Table, frozen=True):
    shape: _Dims


class _End(Table, frozen=True):
    name: _Name
    data_type: Literal[tuple(TYPES)] | None = None  # type: ignore[valid-type]
    dims: _Dims | None = None
    reshape: _Reshape | None = None


class _Step(Table, frozen=True):
    model_name: Annotated[str, Meta(pattern=f"{NAME[:-1]}\\Z", description="the name of a model")]
    input_map: _Map
    output_map: _Map
    model_version: Annotated[int, Meta(ge=-1, le=10**18 - 1)] = -1
    model_label: Annotated[str, Meta(pattern=f"{LABEL[:-1]}\\Z", description="a label of the model")] | None = None


class _Scheduling(Table, frozen=True):
    step: Annotated[list[_Step], Meta(min_length=1, max_length=MOST_STEPS,
                                      description=f"a list of 1 to {MOST_STEPS} steps")]  # fmt: skip


class _File(Table, frozen=True):
    input: Annotated[list[_End], Meta(min_length=1, description="a list of at least one input")]
    output: Annotated[list[_End], Meta(min_length=1, description="a list of at least one output")]
    ensemble_scheduling: _Scheduling
    name: str | None = None
    platform: Literal["ensemble"] = "ensemble"
    max_batch_size: Annotated[int, Meta(ge=0, le=10**9)] | None = None


_READ = Reader(partial(GatewayError, 400), "see docs/serving.md", shown)


def read(data: bytes | memoryview, path: str, name: str) -> Scheduling:
    """The graph of the ensemble `name` in the content of a file, JSON if its name says so, else TOML. Raises
    GatewayError (400)."""
    file, kind = os.path.basename(path), "JSON" if path.endswith(".json") else "TOML"
    try:
        text = bytes(data).decode("utf-8")
        document = json.loads(text, object_pairs_hook=_once) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise GatewayError(400, f"{file}: expected {kind}, got something else: {str(error)[:200]}") from None
    try:
        return parse(document, name)
    except GatewayError as error:
        raise GatewayError(400, f"{file}: {error}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("duplicate key in an object")
    return made


def parse(document: Any, name: str = "") -> Scheduling:
    """The graph in a document. name: the ensemble's, to be compared with the one that the document may give. Raises
    GatewayError (400): for what is missing, unknown, or not used by anything, and for steps in a circle."""
    file = _READ.read(_File, document)
    if name and file.name not in (None, name):
        raise _READ.wrong("name", f"{name!r}, where the file is, or nothing", file.name)
    inputs, outputs = _ends(file.input, "input"), _ends(file.output, "output")
    steps = [_step(number, step) for number, step in enumerate(file.ensemble_scheduling.step, 1)]
    makers = _makers(inputs, steps)
    for step in steps:
        for tensor in step.inputs.values():
            _known(tensor, makers, f"{step}: input_map")
    for output in outputs:
        _known(output, makers, "output")
        if makers[output] is None:
            raise GatewayError(400, f"output {output!r} is an input of the ensemble; expected a step's output")
    _check_used(makers, steps, outputs)
    after = [sorted({m.number for t in s.inputs.values() if (m := makers[t]) is not None}) for s in steps]
    uses = Counter(tensor for step in steps for tensor in {*step.inputs.values()})
    return Scheduling(inputs, outputs, _ordered(steps, after), uses, file.max_batch_size, _document(document))


def _document(document: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = document["ensemble_scheduling"]["step"]
    return {"step": [{"model_version": -1, **step} for step in steps]}


def _ends(listed: Sequence[_End], where: str) -> dict[str, End]:
    found: dict[str, End] = {}
    for entry in listed:
        name, dims, shape = entry.name, entry.dims, entry.reshape.shape if entry.reshape is not None else None
        if name in found:
            raise GatewayError(400, f"{where} {name!r} is listed twice")
        _READ.need(0 not in (*(dims or ()), *(shape or ())), f"{where} {name!r}", "sizes from 1, or -1: any size", 0)
        if shape is not None:
            _READ.need(dims is not None, f"{where} {name!r}: reshape", "dims beside it", None)
            alike = [(prod(d for d in one if d >= 0), sum(d < 0 for d in one)) for one in (dims or (), shape)]
            _READ.need(alike[0] == alike[1] and alike[0][1] <= 1, f"{where} {name!r}: reshape.shape",
                       f"as many elements as dims {dims}, at most one size -1 in each", shape)  # fmt: skip
        found[name] = End(
            name, TYPES.get(entry.data_type or "", ""), tuple(dims) if dims is not None else None,
            tuple(shape) if shape is not None else None,
        )  # fmt: skip
    return found


def _step(number: int, step: _Step) -> Step:
    where = f"step {number} (model {step.model_name!r})"
    version = "" if step.model_version < 0 else str(step.model_version)
    _READ.need(version != "0", f"{where}: model_version", "-1 or a version from 1", 0)
    if version and step.model_label:
        raise GatewayError(400, f"{where}: expected model_version or model_label, got both")
    return Step(number, step.model_name, version or step.model_label or "", dict(step.input_map), dict(step.output_map))


# -- the graph ---------------------------------------------------------------------------------------------------------


def _makers(inputs: Iterable[str], steps: Iterable[Step]) -> dict[str, Step | None]:
    """Which step makes a tensor; None: it is an input of the ensemble."""
    makers: dict[str, Step | None] = dict.fromkeys(inputs)
    for step in steps:
        for tensor in step.outputs.values():
            if tensor in makers:
                other = makers[tensor] or "an input of the ensemble"
                what = "two of its outputs" if other is step else f"it and {other}"
                raise GatewayError(400, f"{step}: output_map: tensor {tensor!r} is {what}; give each its own name")
            makers[tensor] = step
    return makers


def _known(tensor: str, makers: Mapping[str, Step | None], where: str) -> None:
    if tensor not in makers:
        text = f"{where}: tensor {tensor!r} is neither an input of the ensemble nor an output of a step"
        raise GatewayError(400, f"{text}{closest(tensor, list(makers))}")


def _check_used(makers: Mapping[str, Step | None], steps: Iterable[Step], outputs: Iterable[str]) -> None:
    read = {tensor for step in steps for tensor in step.inputs.values()}.union(outputs)
    for tensor, step in makers.items():
        if tensor not in read:
            what = f"input {tensor!r}" if step is None else f"{step}: output_map: tensor {tensor!r}"
            raise GatewayError(400, f"{what} is not used: no step reads it, and it is no output; remove it")


def _ordered(steps: Sequence[Step], after: Sequence[Sequence[int]]) -> tuple[Step, ...]:
    """The steps, each after those whose numbers it needs. Raises GatewayError (400) for steps in a circle."""
    try:
        numbers = list(TopologicalSorter({step.number: after[step.number - 1] for step in steps}).static_order())
    except CycleError as error:
        circle = " → ".join(map(str, error.args[1]))
        raise GatewayError(400, f"steps {circle} are a circle: each needs what the one before it makes") from None
    place = {number: i for i, number in enumerate(numbers)}
    needs = [tuple(place[m] for m in after[n - 1]) for n in numbers]
    return tuple(
        steps[n - 1]._replace(after=needs[i], before=tuple(j for j, those in enumerate(needs) if i in those))
        for i, n in enumerate(numbers)
    )
