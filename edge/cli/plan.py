"""`msedge plan`: how a run's step would be split over a cluster, what it would cost, and whether compiling agrees."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from cloud.parallel.check import Report
    from cloud.parallel.graph import Graph
    from cloud.parallel.plan import Plan
    from cloud.parallel.topology import Topology

__all__ = ["plan"]


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What `msedge train` takes.")],
    topology: Annotated[
        str,
        typer.Option(
            "--topology", metavar="NAME|FILE.toml", help="A preset or a file; else as [parallel] says, or what is here."
        ),
    ] = "",
    memory: Annotated[
        str, typer.Option("--memory", metavar="16GiB", help="Of one device; else as [parallel] or the topology says.")
    ] = "",
    check: Annotated[
        Literal["cpu", "gpu"] | None,
        typer.Option(
            "--check",
            help="Compile the planned step for so many devices and compare; exit code 1: it does not fit, or moves "
            "other bytes than planned.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Another value of the configuration; repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the fastest way to split a training step over a cluster that need not be here."""
    from cloud.train.config import read, read_size

    words = read(config, changes or ())
    named = topology or words.parallel.topology
    _enough_devices(named, check)
    limit = read_size(memory, "--memory") if memory else None
    if limit is None and words.parallel.memory:
        limit = read_size(words.parallel.memory, "parallel.memory")
    from cloud.parallel.search import search
    from cloud.parallel.trace import trace
    from cloud.train.planning import checked, step_of, topology_of

    described = topology_of(named)
    step, state, batch = step_of(words)
    say(f"tracing the step; searching for {described.size} devices of {described.name}")
    graph = trace(step, state, batch)
    found = search(graph, described, memory=limit, backend=check or "gpu")
    report = checked(graph, found, described, step, (state, batch), check) if check else None
    made = _made(graph, found, described, report)
    if as_json:
        emit(made)
    else:
        _print(made, report)
    if report is not None and not (report.fits and report.agrees(peak=float("inf"))):
        raise typer.Exit(CHECK_FAILED)


def _enough_devices(name: str, check: str | None) -> None:
    """Virtual CPU devices for a check: JAX asks for their number when it starts, and has not started yet."""
    flag = "--xla_force_host_platform_device_count"
    if check == "cpu" and name and flag not in os.environ.get("XLA_FLAGS", ""):
        from cloud.parallel.topology import Topology

        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}={Topology.named(name).size}".strip()


def _made(graph: Graph, found: Plan, described: Topology, report: Report | None) -> dict[str, Any]:
    estimate = found.estimate
    lie = zip(graph.entering, found.entering, strict=True)
    return {
        "topology": described.name,
        "devices": described.size,
        "mesh": list(found.mesh.sizes),
        "step_seconds": estimate.step_seconds,
        "compute_seconds": estimate.compute_seconds,
        "collective_seconds": estimate.collective_seconds,
        "peak_bytes": estimate.peak_bytes,
        "entering": {
            graph.values[v].name: {
                "shape": list(graph.values[v].shape), "split": [[f"m{axis}" for axis in axes] for axes in split],
            }
            for v, split in lie
        },
        "collectives": [
            {"kind": c.kind, "bytes": c.bytes, "axes": [f"m{a}" for a in c.axes], "times": c.times, "why": c.why}
            for c in estimate.collectives
        ],
    } | ({"check": report.to_dict()} if report is not None else {})  # fmt: skip


def _print(made: dict[str, Any], report: Report | None) -> None:
    rows = table("how it lies", "what enters", "shape", "split over", right=("shape",), fold=("what enters",))
    for name, value in made["entering"].items():
        split = ", ".join(f"{dim}: {' '.join(axes)}" for dim, axes in enumerate(value["split"]) if axes)
        if split:
            rows.add_row(name, "×".join(map(str, value["shape"])), split)
    console().print(rows)
    rows = table("collectives of a step", "kind", "axes", "bytes", "what for", right=("bytes",), fold=("what for",))
    for one in sorted(made["collectives"], key=lambda one: -one["bytes"] * one["times"]):
        rows.add_row(one["kind"], " ".join(one["axes"]), bytes_text(one["bytes"] * one["times"]), one["why"])
    console().print(rows)
    print(
        f"{made['devices']} devices as {'×'.join(map(str, made['mesh']))}: {seconds_text(made['step_seconds'])} a step "
        f"({seconds_text(made['compute_seconds'])} computing, {seconds_text(made['collective_seconds'])} of "
        f"collectives), {bytes_text(made['peak_bytes'])} a device at most"
    )
    if report is not None:
        print(report.text())
