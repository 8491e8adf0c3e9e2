"""`msedge plan`: how a run's step would be split over a cluster, what it would cost, and whether compiling agrees."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
"""What an option adds: to the JSON object, and as text."""


Pins: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="GLOB=DIM:AXIS",
        help="How tensors whose names match are sharded: params.*.w=1:m0, GLOB=whole; repeatable.",
    ),
]
Check: TypeAlias = Annotated[
    Literal["cpu", "gpu"] | None,
    typer.Option(
        "--check",
        help="Compile the planned step for so many devices and compare; exit code 1: it does not fit, or moves "
        "other bytes than planned.",
    ),
]


def plan(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="What `msedge train` takes; or --model.")
    ] = None,
    model: Annotated[
        Literal["mlp", "gpt", "moe"] | None,
        typer.Option("--model", help="A step to try instead: 8 layers of 4096; 12 transformer blocks; 6 with experts."),
    ] = None,
    topology: Annotated[
        str,
        typer.Option(
            "--topology", metavar="NAME|FILE.toml", help="A preset or a file; else as [parallel] says, or what is here."
        ),
    ] = "",
    memory: Annotated[
        str, typer.Option("--memory", metavar="16GiB", help="Of one device; else as [parallel] or the topology says.")
    ] = "",
    expert: Annotated[
        str,
        typer.Option(
            "--expert", metavar="NAME", help="A plan of the field's: dp, fsdp, megatron, dp_tp, tp_sp or ep; what it "
            "leaves open is searched."
        ),
    ] = "",
    pins: Pins = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1.0, help="For the search, at most.")] = 60.0,
    explain: Annotated[
        bool, typer.Option("--explain", help="What lies how, what moves and why, and what other plans would cost.")
    ] = False,
    diff: Annotated[
        Path | None, typer.Option("--diff", metavar="PLAN", help="What is different from an earlier plan's file.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="plan.json", help="Where the plan is written.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--picture", metavar="plan.html", help="The plan as a page.")
    ] = None,
    check: Check = None,
    changes: Changes = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Find the fastest way to split a training step over a cluster that need not be here.

    Mesh axes are named m0, m1 and so on, from the slowest links to the fastest.
    """
    _refuse(config, model, seconds, changes)
    from cloud.parallel.explaining import planfile
    from cloud.parallel.explaining.inquiry import Wanted, rivals
    from cloud.train.jobs.config import read

    before = planfile.read(diff) if diff is not None else None  # a file that cannot be read or written ends it here
    _writable(output, picture)
    words = read(config, changes or ()) if config is not None else None
    named = topology or (words.parallel.topology if words else "")
    _enough_devices(named, check)
    again = words.train.recompute if words else 0.0
    wanted = Wanted(_limit(memory, words), expert, tuple(pins or ()), check or "gpu", seconds, again)
    traced, answer = _answered(words, model, named, wanted)
    others: Rivals = {}
    if explain or picture is not None:
        say("searching for plans to compare with")
        others = rivals(answer) | _stages(words, answer)
    report = _checked(traced, answer, check) if check is not None else None
    parts = [_found(answer)]
    parts += [_explained(answer, others)] if explain else []
    parts += [_differing(answer, before)] if before is not None else []
    parts += [_saved(answer, output)] if output is not None else []
    parts += [_drawn(answer, others, picture)] if picture is not None else []
    if report is not None:
        parts.append(({"check": report.to_dict()}, f"as the {check}'s compiler has it\n{report.text()}"))
    _print(parts, as_json)
    if report is not None and not (report.fits and report.agrees(peak=float("inf"))):
        raise typer.Exit(CHECK_FAILED)


def _print(parts: Sequence[Part], as_json: bool) -> None:
    if as_json:
        emit({key: value for made, _ in parts for key, value in made.items()})
    else:
        print("\n\n".join(text for _, text in parts))


def _refuse(config: Path | None, model: str | None, seconds: float, changes: list[str] | None) -> None:
    """Raise BadParameter for options that do not go together."""
    if (config is None) == (model is None):
        raise typer.BadParameter(
            "expected a configuration or --model NAME, exactly one of them", param_hint="CONFIG.toml"
        )
    if model is not None and changes:
        raise typer.BadParameter("a built-in model has no sections to change", param_hint="--set")
    if not 1.0 <= seconds < float("inf"):
        raise typer.BadParameter(f"expected a number of seconds of at least 1, got {seconds}", param_hint="--seconds")


def _writable(*paths: Path | None) -> None:
    """A search is long: what its results are written to is looked at before it."""
    from cloud.errors import PlanError

    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise PlanError(f"there is no folder for {str(path)!r}; create it first")
        if path is not None and path.is_dir():
            raise PlanError(f"expected the name of a file, got the folder {str(path)!r}; add a file name")


class _Traced(NamedTuple):
    """A pure step, its state and batch as shapes, and its graph."""

    step: Any
    arguments: tuple[Any, Any]
    graph: Graph


def _limit(memory: str, words: Config | None) -> float | None:
    from cloud.train.jobs.config import read_size

    if memory:
        return read_size(memory, "--memory")
    said = words.parallel.memory if words else ""
    return read_size(said, "parallel.memory") if said else None


def _enough_devices(name: str, check: str | None) -> None:
    """Virtual CPU devices for a check: JAX asks for their number when it starts, and has not started yet."""
    flag = "--xla_force_host_platform_device_count"
    if check == "cpu" and name and flag not in os.environ.get("XLA_FLAGS", ""):
        from cloud.parallel.topology import Topology

        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={Topology.named(name).size}".strip()


def _answered(words: Config | None, model: str | None, named: str, wanted: Wanted) -> tuple[_Traced, Answer]:
    from cloud.parallel.explaining.inquiry import inquire
    from cloud.train.jobs.planning import topology_of

    topology, traced = topology_of(named), _traced(words, model)
    leaner = {}
    if words is not None and words.train.recompute < 1:
        from msgspec import structs

        again = structs.replace(words, train=structs.replace(words.train, recompute=1.0))
        leaner["--set train.recompute=1.0"] = lambda: _traced(again, None).graph
    say(f"searching for {topology.size} devices of {topology.name}, {wanted.seconds:g} s at most")
    return traced, inquire(traced.graph, topology, wanted, leaner)


def _traced(words: Config | None, model: str | None) -> _Traced:
    from cloud.parallel.tracing.trace import trace

    say("tracing the step")
    if words is not None:
        from cloud.train.jobs.planning import step_of

        step, state, batch = step_of(words)
        return _Traced(step, (state, batch), trace(step, state, batch))
    from cloud.parallel.explaining.examples import EXAMPLES

    example = EXAMPLES[str(model)]()
    return _Traced(example.step, (example.state, example.batch), trace(example.step, example.state, example.batch))


def _stages(words: Config | None, answer: Answer) -> dict[str, Other]:
    """The best pipeline, where the step is a configuration's: others have no loss that can be cut."""
    from cloud.train.jobs.planning import stages_of

    choice = stages_of(words, answer.topology, answer.limit) if words is not None else None
    return {"pipeline": choice} if choice is not None else {}


def _found(answer: Answer) -> Part:
    """The plan in short, and all of it as data."""
    from cloud.parallel.explaining.planfile import to_dict
    from cloud.parallel.explaining.strategy import strategy

    plan, topology = answer.plan, answer.topology
    cost, mesh, called = plan.estimate, "×".join(map(str, plan.mesh.sizes)), strategy(answer.graph, plan)
    text = (
        f"{called}\n{topology.size} devices of {topology.name} as {mesh}: {seconds_text(cost.step_seconds)} a step "
        f"({seconds_text(cost.compute_seconds)} computing, {seconds_text(cost.exposed_seconds)} of collectives that "
        f"nothing hides), {bytes_text(cost.peak_bytes)} a device at most, of {bytes_text(answer.limit)}"
    )
    facts = {"strategy": called, "devices": topology.size, "step_seconds": cost.step_seconds, "limit": answer.limit}
    return facts | {"plan": to_dict(plan, answer.graph, topology)}, text


def _explained(answer: Answer, others: Rivals) -> Part:
    from cloud.parallel.explaining.explain import explain
    from cloud.parallel.explaining.telling import told

    made = explain(
        answer.graph, answer.plan, answer.topology, others, memory=answer.limit, reduce_scatter=answer.reduce_scatter
    )
    return {"explanation": made.to_dict()}, told(made)


def _differing(answer: Answer, saved: Saved) -> Part:
    from cloud.parallel.explaining.difference import diff
    from cloud.parallel.searching.predict import predict

    before = saved.check(answer.graph, answer.topology)
    # Both for the same compiler, whichever the file's was predicted for.
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

    say(f"compiling with the {check}'s compiler")
    limited = replace(answer.topology, memory=answer.limit)
    return checked(traced.graph, answer.plan, limited, traced.step, traced.arguments, check)
