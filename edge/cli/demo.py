"""`msedge demo`: training, conversion, federated learning and serving on real data, with tables of results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.options import Json, Seed, Threads
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import TaskID

    from cloud.train import EpochReport
    from edge.demo.fleet_loop import FleetOutcome
    from edge.demo.loop import Outcome
    from edge.demo.serve_loop import ServeOutcome

__all__ = ["demo"]


def demo(
    epochs: Annotated[int, typer.Option("--epochs", min=1, metavar="N", help="Number of training epochs.")] = 20,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Keep models, reports and personal heads there.")
    ] = None,
    seed: Seed = 0,
    threads: Threads = 1,
    as_json: Json = False,
) -> None:
    """Train, convert, verify, run and serve a small network; train it further on ten simulated devices.

    ResNet-8 on scikit-learn's handwritten digits; needs no network access. Exit code 1 when the device's accuracy is
    below 0.97, its logits differ by more than 1e-4 from the cloud's, federated learning improves a device's accuracy
    by less than 0.3, or personal versions are no more accurate than the common model.
    """
    from edge.demo.loop import run_loop

    start = perf_counter()
    with _folder(keep) as folder, _bars(epochs) as (progress, compiled):
        outcome = run_loop(
            folder, epochs=epochs, seed=seed, threads=threads, say=say, progress=progress, compiled=compiled
        )
    if as_json:
        emit({**outcome.as_dict(), "seconds": perf_counter() - start})
    else:
        _print(outcome, perf_counter() - start, keep)
    if not outcome.ok:
        raise typer.Exit(CHECK_FAILED)


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        yield keep
        return
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="msedge-demo-") as folder:
        yield Path(folder)


@contextmanager
def _bars(epochs: int) -> Iterator[tuple[Callable[[EpochReport], None], Callable[[int, int], None]]]:
    """Callbacks for the progress of epochs and of compiled kernel families: one display on stderr until both are done,
    with one row for each; plain lines if stderr is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    out = console(stderr=True)
    bars = Progress(
        TextColumn("       {task.fields[what]} {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=20),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=out,
    )
    rows: dict[str, TaskID] = {}
    lock = Lock()

    def show(what: str, done: int, count: int, words: str = "") -> None:
        with lock:
            if not out.is_terminal:
                return
            if what not in rows:
                rows[what] = bars.add_task("", total=count, what=what)
                bars.start()
            bars.update(rows[what], completed=done, description=words)
            if bars.finished:
                bars.stop()

    def advance(report: EpochReport) -> None:
        words = f"loss {report.loss:.3f}, accuracy {report.accuracy or 0:.3f}"
        if not out.is_terminal:
            say(f"       epoch {report.epoch}/{epochs}: {words}")
        show("epoch", report.epoch, epochs, words)

    def compiled(done: int, count: int) -> None:
        if not out.is_terminal and done == count:
            say(f"       {count} kernel families compiled, saved for later runs")
        show("kernels", done, count, "compiled, saved for later runs")

    try:
        yield advance, compiled
    finally:
        bars.stop()


def _print(o: Outcome, seconds: float, keep: Path | None) -> None:
    heads = ("cloud", "device", "device int8", "onnxruntime")
    rows = table("", "", *heads, right=heads)
    figures = (
        ("accuracy", o.accuracy_cloud, o.accuracy_device, o.accuracy_int8, o.accuracy_onnxruntime, "{:.4f}".format),
        ("max |logit difference|", None, o.difference_device, None, o.difference_onnxruntime, "{:.1e}".format),
        ("file", None, o.bundle_bytes, o.int8_bytes, o.onnx_bytes, bytes_text),
        ("peak arena", None, o.arena_bytes, o.arena_int8, None, bytes_text),
        ("one image", None, o.latency_device, o.latency_int8, o.latency_onnxruntime, seconds_text),
    )
    for name, *values, write in figures:
        rows.add_row(name, *("" if value is None else write(value) for value in values))
    if o.ratio is not None and o.ratio_int8 is not None:
        ratios = (o.ratio, o.ratio_int8)
        rows.add_row("× onnxruntime's speed", "", *(f"{ratio.median:.2f}" for ratio in ratios), "")
        rows.add_row("  between", "", *(f"{ratio.low:.2f}–{ratio.high:.2f}" for ratio in ratios), "")
    print(f"\nResNet-8, {o.parameters:,} parameters; {o.trained_on} training digits, {o.held_out} held-out digits")
    console().print(rows)
    _print_fleet(o.fleet)
    _print_served(o.served)
    good = "all checks passed: training, conversion, federated learning, serving"
    verdict = good if o.ok else "the models are NOT good enough"
    print(f"{verdict}; the demo took {seconds:.0f} s")
    if keep is not None:
        print(f"next: msedge inspect {keep / 'digits.mslite'}, and {keep / 'fleet.html'} in a browser")


def _print_fleet(fleet: FleetOutcome) -> None:
    count, rounds = len(fleet.devices), fleet.report["rounds"]
    print(f"{count} devices with rotated cameras, after {rounds} federated rounds")
    heads = ("cloud model", "own model")
    rows = table("", "accuracy on", *heads, right=heads)
    for row in fleet.devices:
        rows.add_row(f"{row.name}{'' if row.trained else ', held out'}", f"{row.cloud:.3f}", f"{row.own:.3f}")
    rows.add_section()
    for words, trained in (("mean of devices that train", True), ("mean of held-out devices", False)):
        rows.add_row(words, f"{fleet.mean('cloud', trained):.3f}", f"{fleet.mean('own', trained):.3f}")
    console().print(rows)


def _print_served(served: ServeOutcome) -> None:
    from edge.demo.serve_loop import BATCH, CLIENTS

    print(f"a gateway and {CLIENTS} clients in this process; devices send held-out images")
    heads = ("accuracy", "images/s", "median", "batch")
    rows = table("", "over HTTP", *heads, right=heads)
    for words, load in (
        (f"held-out digits, {BATCH} per request", served.everybody),
        (f"{served.devices} devices, common model", served.common),
        ("same devices, personal versions", served.personal),
    ):
        figures = f"{load.accuracy:.3f}", f"{load.rate:,.0f}", seconds_text(load.median), f"{load.rows:.1f}"
        rows.add_row(words, *figures)
    console().print(rows)
