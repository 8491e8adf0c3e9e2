"""Whether models fit together: the tensors of an ensemble, compared with those of its models. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from edge.gateway.ensembles.scheduling import End, Scheduling, Step
from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES, Port, Ports
from federated.tables import closest
from lite_runtime.graph import Array, Dim, numpy_dtype

__all__ = ["check", "fit", "inward", "outward"]

Shape = tuple[Dim, ...] | None


class _Kind(NamedTuple):
    """A tensor's datatype ("": unknown) and shape (None: unknown; a size that is no number is open)."""

    datatype: str
    shape: Shape

    def __str__(self) -> str:
        sizes = "any shape" if self.shape is None else [d if isinstance(d, int) else -1 for d in self.shape]
        return f"{self.datatype or 'any datatype'} {sizes}"

    def merged(self, other: _Kind) -> _Kind | None:
        """What both say; None if they contradict each other. An open size agrees with every other one, and is compared
        again when a request is computed."""
        if self.datatype and other.datatype and self.datatype != other.datatype:
            return None
        shape = self.shape if other.shape is None else other.shape
        if self.shape is not None and other.shape is not None:
            if len(self.shape) != len(other.shape):
                return None
            pairs = list(zip(self.shape, other.shape, strict=True))
            if any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs):
                return None
            shape = tuple(a if isinstance(a, int) else b for a, b in pairs)
        return _Kind(self.datatype or other.datatype, shape)


def fit(scheduling: Scheduling, parts: Sequence[Ports]) -> Ports:
    """The ensemble's inputs and outputs as clients see them. parts: of the model of each step.

    Requests have an axis of rows if all models have one, unless the file says `max_batch_size = 0`. Raises GatewayError
    (503) that names the tensor and both sides if models do not fit together, or do not fit what the file declares.
    """
    single = [str(step) for step, ports in zip(scheduling.steps, parts, strict=True) if not ports.batched]
    if scheduling.max_batch and single:
        raise _unfit(f"max_batch_size is {scheduling.max_batch}, but {single[0]} takes no rows of several requests;"
                     " set it to 0")  # fmt: skip
    batched = scheduling.max_batch != 0 and not single
    kinds: dict[str, tuple[_Kind, str]] = {}
    for tensor, kind, where in _views(scheduling, parts, batched):
        before, whose = kinds.get(tensor, (_Kind("", None), where))
        both = before.merged(kind)
        if both is None:
            raise _unfit(f"tensor {tensor!r}: {whose} has {before}, {where} has {kind}")
        kinds[tensor] = both, whose if tensor in kinds else where
    return Ports(
        {name: _port(end, kinds[name][0], batched) for name, end in scheduling.inputs.items()},
        {name: _port(end, kinds[name][0], batched) for name, end in scheduling.outputs.items()},
        batched,
    )


def _views(scheduling: Scheduling, parts: Sequence[Ports], batched: bool) -> Iterator[tuple[str, _Kind, str]]:
    """What the file and every step say of a tensor."""
    for step, ports in zip(scheduling.steps, parts, strict=True):
        for side, mapped, held in (("input", step.inputs, ports.inputs), ("output", step.outputs, ports.outputs)):
            for name, tensor in mapped.items():
                if name not in held:
                    raise _unfit(f"{step}: {side}_map: the model has no {side} {name!r}{closest(name, list(held))}")
                yield tensor, _Kind(held[name].datatype, held[name].shape), f"{side} {name!r} of {step}"
        if missing := [name for name in ports.inputs if name not in step.inputs]:
            raise _unfit(f"{step}: input_map: expected a tensor for each input of the model, got none for"
                         f" {', '.join(map(repr, missing))}")  # fmt: skip
    for side, ends in (("input", scheduling.inputs), ("output", scheduling.outputs)):
        for name, end in ends.items():
            yield name, _Kind(end.datatype, _whole(_inner(end), batched)), f"the file's {side} {name!r}"


def _inner(end: End) -> tuple[int, ...] | None:
    return end.dims if end.shape is None else end.shape


def _whole(dims: tuple[int, ...] | None, batched: bool) -> Shape:
    if dims is None:
        return None
    return (*([None] if batched else []), *(d if d >= 0 else None for d in dims))


def _port(end: End, kind: _Kind, batched: bool) -> Port:
    """An input or output as clients see it."""
    shape = kind.shape if end.shape is None else _whole(end.dims, batched)
    if shape is not None:
        sizes = (d if isinstance(d, int) else None for d in shape)
        shape = ("rows", *list(sizes)[1:]) if batched else tuple(sizes)
    dtype = numpy_dtype(DATATYPES[kind.datatype])
    return Port(end.name, kind.datatype, dtype, 0 if dtype.hasobject else dtype.itemsize, shape)


def _unfit(text: str) -> GatewayError:
    return GatewayError(503, text)


# -- while a request is computed ---------------------------------------------------------------------------------------


def inward(scheduling: Scheduling, inputs: Mapping[str, Array], batched: bool) -> dict[str, Array]:
    """A request's inputs in the shapes that the models get."""
    ends = scheduling.inputs
    return {name: _reshaped(array, ends[name].shape, batched) for name, array in inputs.items()}


def outward(scheduling: Scheduling, ports: Ports, outputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs in the shapes that clients get. Raises GatewayError (500) if a model made another shape than the file
    promises."""
    made = {}
    for name, end in scheduling.outputs.items():
        array = outputs[name]
        try:
            made[name] = _reshaped(array, end.dims if end.shape is not None else None, ports.batched)
        except ValueError:
            made[name] = array
        if not _takes(ports.outputs[name], made[name].shape, {}):
            raise GatewayError(500, f"output {name!r}: expected shape {list(ports.outputs[name].open)} (-1: any size),"
                                    f" as the ensemble's file says, got {list(array.shape)}")  # fmt: skip
    return made


def check(step: Step, ports: Ports, inputs: Mapping[str, Array]) -> int:
    """The number of rows of a step's inputs. Raises GatewayError (400) for shapes that its model does not take."""
    sizes: dict[str, int] = {}
    for name, array in inputs.items():
        if not _takes(ports.inputs[name], array.shape, sizes) or (ports.batched and not array.shape[0]):
            more = ", at least one row, and as many rows as its other inputs" if ports.batched else ""
            raise GatewayError(400, f"{step}: input {name!r}: expected shape {list(ports.inputs[name].open)} (-1: any"
                                    f" size){more}, got {list(array.shape)}")  # fmt: skip
    return next(iter(inputs.values())).shape[0] if ports.batched else 1


def _reshaped(array: Array, shape: tuple[int, ...] | None, batched: bool) -> Array:
    return array if shape is None else array.reshape(*array.shape[:batched], *shape)


def _takes(port: Port, shape: tuple[int, ...], sizes: dict[str, int]) -> bool:
    """Whether an array's shape is that of a port. sizes: of the open sizes with names, so far."""
    if port.shape is None:
        return True
    if len(port.shape) != len(shape):
        return False
    for want, got in zip(port.shape, shape, strict=True):
        if want != got and (isinstance(want, int) or (want and sizes.setdefault(want, got) != got)):
            return False
    return True
