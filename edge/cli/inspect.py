"""`msedge inspect`: show a bundle's graph as a readable table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Bundle as BundlePath
from edge.cli.options import Custom, InputShapes, Json, read_shapes
from edge.cli.output import bytes_text, console, emit, say, shape_text, table, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edge.measuring.describe import Row
    from lite_runtime.bundle import Bundle
    from lite_runtime.graph import Graph, StateUse, Value
    from lite_runtime.planning.listing import ListedOperand
    from lite_runtime.planning.program import Plan

__all__ = ["inspect"]

WIDE = 100
"""Minimum width of a terminal for showing the names of values; --json always has them."""


def inspect(
    bundle: BundlePath,
    signature: Annotated[str | None, typer.Option(help="Show only this signature.")] = None,
    input_shape: InputShapes = None,
    program: Annotated[
        bool, typer.Option("--program", help="Instead, the native program of each function as this machine runs it.")
    ] = False,
    custom: Custom = None,
    trust: Annotated[
        list[Path] | None,
        typer.Option("--trust", metavar="FILE", help="A public key that must have signed it; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show a bundle's graph, weights and origin, or the program it is planned as."""
    shapes = read_shapes(input_shape)
    from lite_runtime import bundle as bundles

    made = bundles.read(bundle)
    signed = _signed(made, trust or [], as_json)
    graphs = _chosen(made, signature)
    if program:
        plans = {name: _planned(graph, shapes) for name, graph in graphs.items()}
        if as_json:
            emit({"file": str(bundle), "signatures": {name: _program_json(plan) for name, plan in plans.items()}})
            return
        out = console()
        for name, plan in plans.items():
            out.print(_program(name, plan))
        return
    if as_json:
        signatures = {name: _as_json(made, name, shapes) for name in graphs}
        emit({**_facts(bundle, made), "signed_by": signed, "state": _state_json(made), "signatures": signatures})
        return
    out = console()
    for part in _render(bundle, made, graphs, shapes, signed, wide=out.width >= WIDE):
        out.print(part)


def _signed(bundle: Bundle, trust: list[Path], as_json: bool) -> list[str]:
    """Who has signed a bundle, as text. If keys are given and none of them has, ends the command."""
    from lite_runtime.bundle import File, keys
    from lite_runtime.bundle.signatures import signatures_of

    file = File(bundle.digest, bundle.sections, bundle.data)
    if trust:
        import time

        known = [keys.public_key(path) for path in trust]
        try:
            key = keys.check(file, known, time.time())
        except keys.TrustError as error:
            say(f"error: {error}")
            if as_json:
                emit({"error": {"kind": "TrustError", "message": str(error), "next": None}})
            raise typer.Exit(CHECK_FAILED) from None
        return [f"{key.name} ({keys.short(key.key)}), valid"]
    return [f"{keys.short(one.key)}, not checked without --trust" for one in signatures_of(file)]


def _chosen(bundle: Bundle, signature: str | None) -> Mapping[str, Graph]:
    from lite_runtime.errors import InputError

    if signature is None:
        return bundle.signatures
    if signature not in bundle.signatures:
        raise InputError(f"expected a signature of {', '.join(bundle.signatures)}, got {signature!r}")
    return {signature: bundle.signatures[signature]}


def _facts(path: Path, bundle: Bundle) -> dict[str, Any]:
    return {
        "file": str(path),
        "bytes": len(bundle.data),
        "digest": bundle.digest,
        "sections": {name: {"offset": s.offset, "bytes": s.size} for name, s in bundle.sections.items()},
        "provenance": bundle.provenance,
        "metadata": bundle.metadata,
        "golden": list(bundle.golden),
    }


def _state_json(bundle: Bundle) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from edge.measuring.describe import states

    return [asdict(state) for state in states(bundle)]


def _as_json(bundle: Bundle, name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    from dataclasses import asdict

    from edge.measuring.describe import constant_bytes, rows

    graph, use = bundle.signatures[name], _use(bundle, name)

    def values(of: Iterable[Value]) -> list[dict[str, Any]]:
        return [{"name": v.name, "dtype": v.dtype, "shape": v.shape, "kind": v.kind} for v in of]

    return {
        "inputs": values(v for v in graph.inputs if v.name not in use.reads),
        "outputs": values(v for v in graph.outputs if v.name not in use.writes),
        "reads": use.reads,
        "writes": use.writes,
        "weights_bytes": constant_bytes(graph),
        "nodes": [asdict(row) for row in rows(graph, shapes)],
    }


def _render(
    path: Path,
    bundle: Bundle,
    graphs: Mapping[str, Graph],
    shapes: Mapping[str, tuple[int, ...]],
    signed: list[str],
    *,
    wide: bool,
) -> Iterable[RenderableType]:
    from edge.measuring.describe import rows

    yield _head(path, bundle, signed)
    if bundle.state:
        yield _state(bundle)
    for name, graph in graphs.items():
        yield _interface(name, graph, _use(bundle, name))
        yield _nodes(list(rows(graph, shapes)), wide)


def _head(path: Path, bundle: Bundle, signed: list[str]) -> RenderableType:
    rows = table("", "", "", fold=("",))
    rows.show_header = False
    rows.box = None
    rows.add_row("file", f"{path} ({bytes_text(len(bundle.data))})")
    rows.add_row("digest", bundle.digest)
    rows.add_row("signed by", "; ".join(signed) or "nobody")
    rows.add_row("sections", ", ".join(f"{name} {bytes_text(s.size)}" for name, s in bundle.sections.items()))
    rows.add_row("golden", ", ".join(bundle.golden) or "none")
    language = bundle.metadata.get("language")
    known = language if isinstance(language, Mapping) else {}
    for facts in (bundle.provenance, bundle.metadata):
        for key, value in facts.items():
            if value is not known:
                rows.add_row(str(key).replace("_", " "), _fact(value))
    for key, text in _language(known) if known else ():
        rows.add_row(key, text)
    return rows


def _language(about: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """What a bundle says of its language model. Its metadata may be anything."""
    sizes = ("architecture", "layers", "width", "heads", "kv_heads", "head_size", "window", "activations", "cache")
    told = (f"{name.replace('_', ' ')} {_fact(about[name])}" for name in sizes if name in about)
    yield "language model", ", ".join(told)
    for name in ("name", "context", "vocabulary", "stop", "bos", "template"):
        if about.get(name) is not None:
            yield name, _fact(about[name])
    if isinstance(adapters := about.get("adapters"), Mapping):
        yield "adapters", _adapters(adapters)
    yield "made from", _fact(about.get("source") or {})
    layers, heads, size = (about.get(name) for name in ("layers", "kv_heads", "head_size"))
    held = {"float32": (4, 0), "int8": (1, 2)}.get(str(about.get("cache")), (2, 0))
    if isinstance(layers, int) and isinstance(heads, int) and isinstance(size, int):
        size = 2 * layers * heads * (size * held[0] + held[1])
        yield "cache", f"{bytes_text(size)} for each token"


def _adapters(said: Mapping[str, Any]) -> str:
    """Which products take adapters, and how large one is."""
    from lite_runtime.errors import InputError
    from lite_runtime.language.adapters import layout

    try:
        places = layout({"adapters": said})
    except InputError as error:
        return str(error)
    assert places is not None
    roles = dict.fromkeys(target.name.rpartition(".")[2] for target in places.targets)
    return (
        f"rank {places.rank}, factor {places.factor:g}, of {len(places.targets)} products ({_fact(list(roles))}); "
        f"{bytes_text(4 * places.size)} for each"
    )


def _fact(value: Any) -> str:
    """A value of a bundle as text, with characters that a terminal obeys escaped."""
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_fact(v)}" for k, v in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(map(_fact, value)) or "none"
    return visible(str(value))


def _use(bundle: Bundle, name: str) -> StateUse:
    from lite_runtime.graph import StateUse

    return bundle.uses.get(name, StateUse({}, {}))


def _state(bundle: Bundle) -> RenderableType:
    from edge.measuring.describe import states

    held = list(states(bundle))
    rows = table("state", "name", "dtype", "shape", "read by", "written by", fold=("name", "read by", "written by"))
    for state in held:
        used = (", ".join(signatures) for signatures in (state.read, state.written))
        rows.add_row(state.name, state.dtype, shape_text(state.shape), *used)
    rows.caption = f"{len(held)} arrays, {bytes_text(sum(state.bytes for state in held))}, preserved between runs"
    rows.caption_justify = "left"
    return rows


def _interface(name: str, graph: Graph, use: StateUse) -> RenderableType:
    rows = table(f"signature {name}", "", "name", "dtype", "shape", fold=("name",))
    for role, values, state in (("input", graph.inputs, use.reads), ("output", graph.outputs, use.writes)):
        for value in values:
            if value.name not in state:
                kind = value.dtype if value.kind == "tensor" else f"{value.kind} of {value.dtype}"
                rows.add_row(role, value.name, kind, shape_text(value.shape))
    if use.reads or use.writes:
        rows.caption = f"reads {len(use.reads)} and writes {len(use.writes)} of the state"
        rows.caption_justify = "left"
    return rows


def _nodes(nodes: list[Row], wide: bool) -> RenderableType:
    names = ("#", "op", "detail", "gives", "weights", *["name"] * wide)
    rows = table("operators", *names, right=("#", "weights"), fold=("detail", "gives", "name"))
    for row in nodes:
        gives = f"{shape_text(row.shape)} {'' if row.dtype in ('float32', '?') else row.dtype}".strip()
        weights = bytes_text(row.weights) if row.weights else ""
        rows.add_row(str(row.index), row.op, row.detail, gives, weights, *[row.output] * wide)
    rows.caption = (
        f"{len(nodes)} operators, {sum(r.parameters for r in nodes):,} parameters, "
        f"{bytes_text(sum(r.weights for r in nodes))} of weights; float32 if no type is given"
    )
    rows.caption_justify = "left"
    return rows


# -- the native program ------------------------------------------------------------------------------------------------


def _planned(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Plan:
    from lite_runtime.native import tuning
    from lite_runtime.native.target import host
    from lite_runtime.planning.listing import planned
    from lite_runtime.targets import PLAIN

    known = {value.name: shapes[value.name] for value in graph.inputs if value.name in shapes} if shapes else {}
    return planned(graph, known, target=host() or PLAIN, choose=tuning.Choices(tuning.kept()))


def _program_json(plan: Plan) -> dict[str, Any]:
    from lite_runtime.planning.listing import listed

    steps = [step.plain() for step in listed(plan)]
    waiting = [node.where for node in plan.frontier]
    return {"steps": steps, "arena_bytes": plan.arena_bytes, "words": len(plan.program), "waiting": waiting}


def _program(name: str, plan: Plan) -> RenderableType:
    from lite_runtime.planning.listing import listed

    rows = table(f"program of {name}", "#", "word", "is", "where", right=("#",), fold=("word", "is", "where"))
    for i, step in enumerate(listed(plan)):
        workers = "every worker" if step.shared else "one worker"
        rows.add_row(str(i), step.kernel, step.node, f"{workers}{', after all before it' * step.meets}", style="bold")
        for operand in step.operands:
            rows.add_row("", operand.name, operand.role, _where(operand))
        for word, value in step.numbers.items():
            rows.add_row("", word, _number(value), "")
    facts = [f"{len(plan.records)} native steps", f"{len(plan.program)} words"]
    facts.append(f"{bytes_text(plan.arena_bytes)} of arena")
    if plan.frontier:
        facts.append(f"planned during a run: the steps after {', '.join(node.where for node in plan.frontier)}")
    rows.caption = ", ".join(facts)
    rows.caption_justify = "left"
    return rows


def _where(operand: ListedOperand) -> str:
    """Memory and byte offset, then the known facts about the tensor there."""
    if not operand.memory:
        return "left out"
    held = f"{operand.dtype} {shape_text(operand.shape)}" if operand.shape is not None else ""
    return " ".join(filter(None, (f"{operand.memory} +{operand.offset}", operand.value, held)))


def _number(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_number(one)}" for name, one in value.items())
    if isinstance(value, tuple):
        return "; ".join(map(_number, value)) if value and isinstance(value[0], Mapping) else " ".join(map(str, value))
    return f"{value:.9g}" if isinstance(value, float) else str(value)
