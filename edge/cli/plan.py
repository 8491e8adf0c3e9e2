"""`msedge plan`: how a training step would be split over a cluster, its predicted cost, and a check by compiling it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeAlias

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Changes, Json
from edge.cli.output import bytes_text, emit, say, seconds_text

if TYPE_CHECKING:
    from cloud.parallel.checking.check import Report
    from cloud.parallel.explaining.explain import Other
    from cloud.parallel.explaining.inquiry import Answer, Wanted
    from cloud.parallel.explaining.planfile import Saved
    from cloud.parallel.graph import Graph
    from cloud.train.jobs.config import Config

    Rivals = Mapping[str, Other]

__all__ = ["plan"]

Part = tuple[dict[str, Any], str]
"""The output of an option: keys of the JSON object, and text."""


Pins: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="GLOB=DIM:AXIS",
        help="How tensors whose names match are sharded: params.*.w=1:m0, GLOB=whole; repeatable.",
    ),
]
Compiled: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--compiled",
        metavar="N",
        min=0,
        help="Compile this many of the best plans and take the best program; 0: none. Default: as many as --seconds "
        "allow, at most 4, if a compiler for the devices is here.",
    ),
]
Check: TypeAlias = Annotated[
    Literal["cpu", "gpu"] | None,
    typer.Option(
        "--check",
        help="Compile the planned step for as many devices as planned and compare; exit code 1 if it does not fit or "
        "the bytes moved by its collectives differ from the prediction.",
    ),
]


def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="A configuration of `msedge train`; or use --model.")
    ] = None,
    model: Annotated[
        Literal["mlp", "gpt", "moe"] | None,
        typer.Option("--model", help="A built-in step: 8 layers of 4096; 12 transformer blocks; 6 with experts."),
    ] = None,
    topology: Annotated[
        str,
        typer.Option(
            "--topology", metavar="NAME|FILE.toml", help="A preset or a file; default: [parallel], else this machine."
        ),
    ] = "",
    memory: Annotated[
        str, typer.Option("--memory", metavar="16GiB", help="Per device; default: [parallel], else the topology.")
    ] = "",
    expert: Annotated[
        str,
        typer.Option(
            "--expert", metavar="NAME", help="A known strategy: dp, zero1, fsdp, megatron, dp_tp, tp_sp or ep; only"
            " choices that it leaves open are searched."
        ),
    ] = "",
    pins: Pins = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="Time limit of the search.")] = 60.0,
    compiled: Compiled = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="How tensors are sharded, what is moved and why; costs of other plans.")
    ] = False,
    diff: Annotated[
        Path | None, typer.Option("--diff", metavar="PLAN", help="Compare with the plan in an earlier file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="plan.json", help="Write the plan to this file.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="plan.html", help="Write the plan as an HTML page.")
    ] = None,
    check: Check = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Find the fastest way to split a training step over a cluster. This machine need not belong to the cluster.

    Mesh axes are named m0, m1 and so on, from the slowest links to the fastest.
    """
    _refuse(config, model, seconds, changes)
    from cloud.parallel.explaining import planfile
    from cloud.parallel.explaining.inquiry import Wanted, rivals
    from cloud.train.jobs.config import read

    before = planfile.read(diff) if diff is not None else None  # errors in files come first
    _writable(output, picture)
    words = read(config, changes or ()) if config is not None else None
    named = topology or (words.parallel.topology if words else "")
    _enough_devices(named, check)
    again = words.train.recompute if words else 0.0
    wanted = Wanted(_limit(memory, words), expert, tuple(pins or ()), check or "gpu", seconds, again)
    traced, answer = _answered(words, model, named, wanted, compiled)
    others: Rivals = {}
    if explain or picture is not None:
        say("searching for plans to compare with")
        others = rivals(answer) | _stages(words, answer)
    report = _checked(traced, answer, check) if check is not None else None
    parts = [_found(answer)]
    parts += [_explained(answer, others), *_offers(words, answer)] if explain else []
    parts += [_differing(answer, before)] if before is not None else []
    parts += [_saved(answer, output)] if output is not None else []
    parts += [_drawn(answer, others, picture)] if picture is not None else []
    if report is not None:
        parts.append(({"check": report.to_dict()}, f"as compiled by the {check} compiler\n{report.text()}"))
    _print(parts, as_json)
    if report is not None and not (report.fits and report.agrees(peak=float("inf"))):
        raise typer.Exit(CHECK_FAILED)


def _print(parts: Sequence[Part], as_json: bool) -> None:
    if as_json:
        emit({key: value for made, _ in parts for key, value in made.items()})
    else:
        print("\n\n".join(text for _, text in parts))


def _refuse(config: Path | None, model: str | None, seconds: float, changes: list[str] | None) -> None:
    """Raise BadParameter for options that cannot be combined."""
    if (config is None) == (model is None):
        raise typer.BadParameter(
            "expected a configuration or --model NAME, exactly one of them", param_hint="CONFIG.toml"
        )
    if model is not None and changes:
        raise typer.BadParameter("a built-in model has no configuration to change", param_hint="--set")
    if not 1.0 <= seconds < float("inf"):
        raise typer.BadParameter(f"expected a number of seconds of at least 1, got {seconds}", param_hint="--seconds")


def _writable(*paths: Path | None) -> None:
    """Check the output paths before the search, which takes long."""
    from cloud.errors import PlanError

    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise PlanError(f"the folder of {str(path)!r} does not exist; create it first")
        if path is not None and path.is_dir():
            raise PlanError(f"expected the name of a file, got the folder {str(path)!r}; add a file name")


class _Traced(NamedTuple):
    """A pure step, and the shapes of its state and batch."""

    step: Any
    arguments: tuple[Any, Any]


def _limit(memory: str, words: Config | None) -> float | None:
    from cloud.train.jobs.config import read_size

    if memory:
        return read_size(memory, "--memory")
    said = words.parallel.memory if words else ""
    return read_size(said, "parallel.memory") if said else None


def _enough_devices(name: str, check: str | None) -> None:
    """Virtual CPU devices for a check: JAX reads their number when it starts, and it has not started yet."""
    flag = "--xla_force_host_platform_device_count"
    if check == "cpu" and name and flag not in os.environ.get("XLA_FLAGS", ""):
        from cloud.parallel.topology import Topology

        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={Topology.named(name).size}".strip()


def _answered(
    words: Config | None, model: str | None, named: str, wanted: Wanted, compiled: int | None
) -> tuple[_Traced, Answer]:
    import time

    from cloud.errors import PlanError
    from cloud.parallel.checking.compilers import reading
    from cloud.parallel.explaining.inquiry import inquire, settle
    from cloud.parallel.tracing.trace import variants
    from cloud.train.jobs.planning import topology_of

    topology, traced = topology_of(named), _traced(words, model)
    say("tracing the step")
    graphs = variants(traced.step, *traced.arguments, sizes=topology.shares)
    leaner = {}
    if words is not None and words.train.recompute < 1:
        from msgspec import structs

        again = structs.replace(words, train=structs.replace(words.train, recompute=1.0))
        leaner["--set train.recompute=1.0"] = lambda: _graph(_traced(again, None))
    say(f"searching for a plan on {topology.size} devices of {topology.name}, at most {wanted.seconds:g} s")
    found: list[Answer] = []
    failed: list[PlanError] = []
    end = time.monotonic() + wanted.seconds
    reads = compiled != 0 and not isinstance(reading(topology, wanted.backend), str)
    share = wanted.seconds * (0.6 if reads else 1.0)
    for parts, graph in graphs.items():
        try:
            asked = replace(wanted, parts=parts, read=reads, seconds=max(share / len(graphs), 1.0))
            found.append(inquire(graph, topology, asked, leaner))
        except PlanError as error:
            failed.append(error)
    if not found:
        raise failed[0]
    return traced, settle(found, traced.step, traced.arguments, compiled, end)


def _traced(words: Config | None, model: str | None) -> _Traced:
    if words is not None:
        from cloud.train.jobs.planning import step_of

        step, state, batch = step_of(words)
        return _Traced(step, (state, batch))
    from cloud.parallel.explaining.examples import EXAMPLES

    example = EXAMPLES[str(model)]()
    return _Traced(example.step, (example.state, example.batch))


def _graph(traced: _Traced) -> Graph:
    from cloud.parallel.tracing.trace import trace

    return trace(traced.step, *traced.arguments)


def _stages(words: Config | None, answer: Answer) -> dict[str, Other]:
    """The best pipeline-parallel plan, for steps of a configuration: others have no loss to cut into stages."""
    from cloud.train.jobs.planning import stages_of

    choice = stages_of(words, answer.topology, answer.limit) if words is not None else None
    return {"pipeline": choice} if choice is not None else {}


def _found(answer: Answer) -> Part:
    """A summary of the plan, and the whole plan as data."""
    from cloud.parallel.explaining.notes import notes
    from cloud.parallel.explaining.planfile import to_dict
    from cloud.parallel.explaining.strategy import strategy

    plan, topology = answer.plan, answer.topology
    cost, mesh, called = plan.estimate, "×".join(map(str, plan.mesh.sizes)), strategy(answer.graph, plan)
    text = (
        f"{called}\n{topology.size} devices of {topology.name} as {mesh}: {seconds_text(cost.step_seconds)} per step "
        f"({seconds_text(cost.compute_seconds)} computing, {seconds_text(cost.exposed_seconds)} of collectives not "
        f"hidden by it), peak memory {bytes_text(cost.peak_bytes)} per device, of {bytes_text(answer.limit)}"
    )
    known = list(notes(answer.graph, plan))
    if plan.compiled is not None:
        text += (
            f"\nas compiled: {seconds_text(plan.compiled.step_seconds)} per step, peak memory "
            f"{bytes_text(plan.compiled.peak_bytes)} per device"
        )
    text += f"\n{answer.said}" if answer.said else ""
    text += "".join(f"\nnote: {note}" for note in known)
    facts: dict[str, Any] = {
        "strategy": called, "devices": topology.size, "step_seconds": cost.step_seconds, "limit": answer.limit,
        "notes": known, "compiled": asdict(plan.compiled) if plan.compiled else None, "chosen": answer.said,
    }  # fmt: skip
    return facts | {"plan": to_dict(plan, answer.graph, topology)}, text


def _explained(answer: Answer, others: Rivals) -> Part:
    from cloud.parallel.explaining.explain import explain
    from cloud.parallel.explaining.telling import told

    made = explain(
        answer.graph, answer.plan, answer.topology, others, memory=answer.limit, reduce_scatter=answer.reduce_scatter
    )
    return {"explanation": made.to_dict()}, told(made)


def _offers(words: Config | None, answer: Answer) -> list[Part]:
    """What compressed gradients would cost, if the topology has slow links."""
    from cloud.parallel.compressed.method import AUTO, METHODS, Compress
    from cloud.parallel.compressed.price import offers
    from cloud.parallel.compressed.telling import as_data, told

    asked = words.parallel.compress if words is not None else ""
    names = [asked] if asked not in ("", AUTO) else METHODS
    found = offers(
        answer.graph, answer.topology, [Compress.named(name) for name in names], memory=answer.limit,
        reduce_scatter=answer.reduce_scatter,
    )  # fmt: skip
    if not found:
        return []
    return [({"compression": list(map(as_data, found))}, "\n".join(told(one, answer.topology) for one in found))]


def _differing(answer: Answer, saved: Saved) -> Part:
    from cloud.parallel.explaining.difference import diff
    from cloud.parallel.searching.predict import predict

    before = saved.check(answer.graph, answer.topology)
    # Both are predicted for the same compiler; the file's estimate may be for another one.
    cost = predict(answer.graph, before, answer.topology, reduce_scatter=answer.reduce_scatter)
    made = diff(answer.graph, replace(before, estimate=cost), answer.plan, answer.topology)
    return {"difference": made.to_dict()}, made.text()


def _saved(answer: Answer, path: Path) -> Part:
    from cloud.parallel.explaining.planfile import write

    write(path, answer.plan, answer.graph, answer.topology)
    return {"file": str(path)}, f"plan: {path}"


def _drawn(answer: Answer, others: Rivals, path: Path) -> Part:
    from cloud.errors import PlanError
    from cloud.parallel.explaining.drawing.picture import picture
    from cloud.parallel.staged.schedule import schedule
    from cloud.parallel.staged.staging import Staging
    from lite_runtime._files import write_atomically

    stages = others.get("pipeline")
    ticks = None
    if isinstance(stages, Staging):
        ticks = schedule(stages.schedule, len(stages.stages) + 1, stages.microbatches)
    page = picture(
        answer.graph, answer.plan, answer.topology, others, memory=answer.limit, reduce_scatter=answer.reduce_scatter,
        schedule=ticks,
    )  # fmt: skip
    write_atomically(path, page.encode(), PlanError)
    return {"picture": str(path)}, f"picture: {path}"


def _checked(traced: _Traced, answer: Answer, check: Literal["cpu", "gpu"]) -> Report:
    from cloud.train.jobs.planning import checked

    say(f"compiling with the {check} compiler")
    limited = replace(answer.topology, memory=answer.limit)
    return checked(answer.graph, answer.plan, limited, traced.step, traced.arguments, check)
