"""Cutting a model in two: the part that depends on some of the inputs alone, and the rest.

Two organisations that hold different features of the same people train one model this way (docs/federated-vertical.md):
the first part runs where its inputs are, and only its result, which the rest reads as an input, leaves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from converter.errors import ConvertError
from converter.ir import build
from converter.passes import cleanup

__all__ = ["cut"]


def cut(model: ir.Model, inputs: Collection[str], at: Collection[str] = ()) -> tuple[ir.Model, ir.Model]:
    """The part that depends on these inputs alone, and the rest, as new models; `model` is IR from `to_ir`.

    at: names of values where to cut; (): where the two parts meet. The first part's outputs have these names, and so
    have the rest's inputs. Raises ConvertError for unknown names, values that depend on other inputs too, and a rest
    that needs more of the first part than what is cut.
    """
    known = [value.name for value in model.graph.inputs]
    if not inputs or (missing := sorted(set(inputs) - set(known))):
        raise ConvertError(f"cut: expected some of the inputs {', '.join(map(str, known))}, got "
                           f"{', '.join(missing if inputs else ['none'])}")  # fmt: skip
    first = _first_part(model, inputs)
    borders = _named(model, first, at) if at else _meeting(model, first)
    if not borders:
        raise ConvertError(
            "cut: expected a rest that has inputs of its own, got a model that depends on these inputs alone; "
            "say where to cut it"
        )
    return _ending_at(model, borders), _from(model, inputs, borders)


def _first_part(model: ir.Model, inputs: Collection[str]) -> set[ir.Value]:
    """The values that depend on these inputs, and on no other input."""
    own = {value for value in model.graph.inputs if value.name in inputs}
    others = {value for value in model.graph.inputs if value.name not in inputs}
    for node in model.graph:
        read = {value for value in _read(node) if not value.is_initializer()}
        if read & others:
            others |= set(node.outputs)
        elif read & own:
            own |= set(node.outputs)
    return own


def _read(node: ir.Node) -> Iterable[ir.Value]:
    """What a node reads, also inside graphs that are its attributes."""
    yield from (value for value in node.inputs if value is not None)
    for attribute in node.attributes.values():
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            graphs = [attribute.value] if attribute.type == ir.AttributeType.GRAPH else attribute.value
            for graph in graphs:
                for inner in graph:
                    yield from _read(inner)


def _meeting(model: ir.Model, first: set[ir.Value]) -> list[str]:
    """The values of the first part that the rest reads, or that the model returns."""
    found: dict[str, None] = {}
    for node in model.graph:
        if not set(node.outputs) & first:
            found |= {str(value.name): None for value in _read(node) if value in first}
    returned = [str(value.name) for value in model.graph.outputs if value in first]
    if returned and len(returned) < len(model.graph.outputs):
        raise ConvertError(f"cut: output {returned[0]!r} depends on these inputs alone; remove it from the model")
    return [] if returned else list(found)


def _named(model: ir.Model, first: set[ir.Value], at: Collection[str]) -> list[str]:
    names = {value.name for value in first}
    if missing := sorted(set(at) - names):
        raise ConvertError(f"cut: expected values that depend on these inputs alone, got {', '.join(missing)}")
    return list(at)


def _ending_at(model: ir.Model, borders: Sequence[str]) -> ir.Model:
    part = model.clone()
    build.adopt(part)
    values = _values(part)
    part.graph.outputs.clear()
    part.graph.outputs.extend(values[name] for name in borders)
    return _tidy(part)


def _from(model: ir.Model, inputs: Collection[str], borders: Sequence[str]) -> ir.Model:
    part = model.clone()
    build.adopt(part)
    values = _values(part)
    for name in borders:
        old = values[name]
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        old.name = build.fresh(part.graph, name)
        ir.convenience.replace_all_uses_with(old, new)
        part.graph.inputs.append(new)
    part = _tidy(part, keep=borders)
    if left := sorted({str(value.name) for value in part.graph.inputs} & set(inputs) - set(borders)):
        raise ConvertError(
            f"cut: expected the rest to read {', '.join(borders)} alone of the first part, but it depends on "
            f"{', '.join(left)} in another way too; cut there as well"
        )
    return part


def _values(model: ir.Model) -> dict[str, ir.Value]:
    made = [value for node in model.graph for value in node.outputs]
    return {str(value.name): value for value in (*model.graph.inputs, *made)}


def _tidy(model: ir.Model, keep: Collection[str] = ()) -> ir.Model:
    """Without nodes and inputs that nothing reads."""
    cleanup.unused(model)
    for value in [v for v in model.graph.inputs if not v.uses() and not v.is_graph_output() and v.name not in keep]:
        model.graph.inputs.remove(value)
    return model
