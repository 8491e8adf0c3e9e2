"""Plans of signatures for a target that has kernels and nothing else: no planner, no NumPy reference.

What such a target cannot run is refused here, by the operator's name and with what to do about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from converter.ahead.flat import DTYPES
from lite_runtime.bundle import Bundle
from lite_runtime.errors import InputError, UnsupportedOpError
from lite_runtime.graph import Dim, Graph, Node
from lite_runtime.planning.listing import planned
from lite_runtime.planning.plan import JUMP
from lite_runtime.planning.program import Plan
from lite_runtime.steps.declaration import FLAGS
from lite_runtime.targets import Target

__all__ = ["Sized", "chosen", "plan_ahead", "shapes_for"]

Sized: TypeAlias = tuple[int, ...]
"""A shape without open sizes."""
_ORDERS = 200
"""Orders in which buffers are placed, of which the one with the smallest arena is taken: ResNet-8 int8 takes 51 KB
instead of 68."""
_REMEDY = "replace it in the model, or cut the model there (msedge cut) and compute the rest in the calling program"


def chosen(held: Bundle, names: Sequence[str]) -> list[str]:
    """The signatures to build: those asked for, by default all, `predict` first. Raises InputError for an unknown
    name."""
    if unknown := [name for name in names if name not in held.signatures]:
        raise InputError(f"expected a signature of {', '.join(held.signatures)}, got {unknown[0]!r}")
    return list(dict.fromkeys(names)) or sorted(held.signatures, key=lambda name: name != "predict")


def shapes_for(held: Bundle, names: Sequence[str], given: Mapping[str, Sized]) -> dict[str, dict[str, Sized]]:
    """The shapes of each signature's inputs. given: by INPUT, or by SIGNATURE/INPUT for one signature. A size with a
    name that a given shape has is that one's. Without a given shape, a first axis that alone is open in all inputs is
    1.

    Raises InputError for the name of no input.
    """
    graphs = {name: held.signatures[name] for name in names}
    known = {
        key: v.name for name, graph in graphs.items() for v in graph.inputs for key in (v.name, f"{name}/{v.name}")
    }
    if unknown := sorted(set(given) - set(known)):
        inputs = dict.fromkeys(value.name for graph in graphs.values() for value in graph.inputs)
        raise InputError(f"expected shapes of the inputs {', '.join(inputs)}, got one of {', '.join(unknown)}")
    return {name: _shapes(graph, name, given) for name, graph in graphs.items()}


def _shapes(graph: Graph, signature: str, given: Mapping[str, Sized]) -> dict[str, Sized]:
    keys = [(value.name, key) for value in graph.inputs for key in (value.name, f"{signature}/{value.name}")]
    found = {name: given[key] for name, key in keys if key in given}  # the signature's own shape comes last
    pairs = [pair for v in graph.inputs for pair in zip(v.shape or (), found.get(v.name, ()), strict=False)]
    sizes = {dim: size for dim, size in pairs if isinstance(dim, str)}
    open_ = [value for value in graph.inputs if value.name not in found and not _sized(value.shape)]
    firsts = {value.shape[0] for value in open_ if value.shape}
    alone = all(value.shape and isinstance(value.shape[0], str) and _sized(value.shape[1:]) for value in open_)
    if alone and len(firsts) == 1 and not found:
        sizes[str(firsts.pop())] = 1
    for value in open_:
        shape = [sizes.get(d, d) if isinstance(d, str) else d for d in value.shape or (None,)]
        if all(isinstance(d, int) for d in shape):
            found[value.name] = tuple(d for d in shape if isinstance(d, int))
    return found


def plan_ahead(graph: Graph, shapes: Mapping[str, Sized], target: Target) -> Plan:
    """The plan of a graph in which kernels compute everything.

    shapes: of inputs with open sizes. Raises InputError for open sizes without a shape, and for shapes that do not
    match; UnsupportedOpError for operators without a kernel, control flow, and types that the target has no arrays for.
    """
    for role, values in (("input", graph.inputs), ("output", graph.outputs)):
        for value in values:
            if value.kind != "tensor" or value.dtype not in DTYPES:
                kind = value.dtype if value.kind == "tensor" else f"{value.kind} of {value.dtype}"
                raise UnsupportedOpError(
                    f"{role} {value.name!r} is a {kind}; {target.name} has tensors of {', '.join(DTYPES)}: "
                    "convert the values in the calling program, and build a model without them"
                )
    _check_shapes(graph, shapes)
    made = planned(graph, shapes, target=target, orders=_ORDERS)
    _refuse(made, target)
    return made


def _check_shapes(graph: Graph, shapes: Mapping[str, Sized]) -> None:
    """Every input has one shape: its declared one, or a given one that fits."""
    unsized = [v for v in graph.inputs if v.name not in shapes and not _sized(v.shape)]
    if unsized:
        found = " and ".join(f"{v.name!r} [{', '.join(str(d or '?') for d in v.shape or '?')}]" for v in unsized)
        fix = " ".join(f"--input-shape {v.name}={_example(v.shape)}" for v in unsized)
        raise InputError(
            f"open sizes in {found}, and a model is built ahead of time for one shape; say which, for example: {fix}"
        )
    for value in graph.inputs:
        given, declared = shapes.get(value.name), value.shape
        if given is None or declared is None:
            continue
        sizes = zip(declared, given, strict=False)
        if len(declared) != len(given) or any(isinstance(d, int) and d != n for d, n in sizes):
            raise InputError(f"input {value.name!r}: expected a shape like {list(declared)}, got {list(given)}")


def _sized(shape: tuple[Dim, ...] | None) -> bool:
    return shape is not None and all(isinstance(d, int) for d in shape)


def _example(shape: tuple[Dim, ...] | None) -> str:
    return ",".join(str(d if isinstance(d, int) else 1) for d in shape) if shape is not None else "1,2,3"


def _refuse(made: Plan, target: Target) -> None:
    jumps = [r for r in made.records if made.program[r.begin + FLAGS] & JUMP]
    if jumps or made.refusals:
        units = [r.unit for r in jumps] or list(made.refusals)
        raise UnsupportedOpError(
            f"{_named(made.units[units[0]])} is control flow, which {target.name} does not run: {_REMEDY}"
        )
    waiting = [node for step in made.steps if not step.end for node in step.nodes]
    if waiting:
        raise UnsupportedOpError(
            f"{target.name} has kernels and no NumPy, on which alone this model runs {_named(waiting)}: {_REMEDY}"
        )
    if made.frontier or made.rest is not None:
        raise UnsupportedOpError(
            f"{_named(made.frontier)}: the size of its result depends on values, and {target.name} plans nothing "
            f"during a run: {_REMEDY}"
        )
    own = [r for r in made.records if r.name.startswith("user.")]
    if own:
        raise UnsupportedOpError(
            f"{_named(made.units[own[0].unit])} is an operator of your own, whose code {target.name} does not have: "
            f"{_REMEDY}"
        )


def _named(nodes: Iterable[Node]) -> str:
    names = list(dict.fromkeys(node.where for node in nodes))
    return f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
