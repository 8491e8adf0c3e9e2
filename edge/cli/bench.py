"""`msedge bench`: measure a model's speed, compare it with other runtimes, profile its steps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.options import BackendName, Custom, InputShapes, Json, Seed, read_shapes
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edge.measuring.contest import Contest, Entry
    from edge.measuring.footprint import Footprint
    from edge.measuring.roofline import Roofline
    from edge.measuring.tune import Found
    from lite_runtime.running.profiling import Row

__all__ = ["bench"]

_PROCESSES = 5
"""Turns of a language model, at most: each is a process."""


def bench(
    model: Annotated[Path, typer.Argument(metavar="M", help="A bundle, or a model that is converted in memory.")],
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="PEERS",
            help="Runtimes to compare with, comma-separated: onnxruntime,litert,openvino;"
            " for a language model llama.cpp,openvino-genai,onnxruntime-genai, or NAME=MODEL.",
        ),
    ] = "",
    source: Annotated[
        Path | None,
        typer.Option("--source", metavar="MODEL", help="What the other runtimes run when M is a bundle: ONNX, GGUF …"),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=3, metavar="N", help="Number of turns of each runtime.")] = 25,
    cold: Annotated[
        bool, typer.Option("--cold", help="Also measure cold start and peak memory, each runtime in its own process.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also show the time of every step, and how close it is to the roofline.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE.json", help="Write one run as a Chrome trace.")
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="First measure which kernel is fastest for each step, and save the result.")
    ] = False,
    seed: Seed = 0,
    input_shape: InputShapes = None,
    threads: Annotated[
        str, typer.Option("--threads", metavar="N,…", help="Worker threads; several counts are measured in turn.")
    ] = "1",
    backend: BackendName = "auto",
    custom: Custom = None,
    as_json: Json = False,
) -> None:
    """Measure a model's speed, alone or against other runtimes.

    The runtimes take turns in one process, and ratios are computed per turn. --tune, --profile and --trace use the
    first number of threads. The result of tuning is used for every model with steps of the same shape, until the next
    tuning.
    """
    shapes, counts = read_shapes(input_shape), _counts(threads)
    peers = [name for name in against.split(",") if name]
    from edge.measuring.contest import PEERS, contest
    from edge.measuring.language import holds_language

    if holds_language(model):
        return _answering(model, peers, source, counts, min(rounds, _PROCESSES), as_json)
    _known(peers, PEERS)
    found = _tuned(contest(model, threads=counts[0], shapes=shapes, seed=seed, rounds=3)) if tune else []
    results = []
    for count in counts:
        say(f"timing {model.name}{''.join(f' against {name}' for name in peers)}, {_threads(count)}")
        results.append(
            contest(
                model, against=peers, source=source, threads=count, backend=backend, shapes=shapes, seed=seed,
                rounds=rounds,
            )
        )  # fmt: skip
    one = results[0]
    starts = _cold_starts(one, source or model, backend) if cold else ()
    steps = one.runtime.profile(one.inputs) if profile else []
    bounds = _roofline(one.threads) if profile else None
    if trace is not None:
        from edge.measuring.trace import write

        write(trace, one.model, one.runtime.trace(one.inputs))
    if as_json:
        emit(_as_json(results, starts, steps, bounds) | {"tuned": [asdict(one) for one in found]})
        return
    if tune:
        console().print(_tuning_table(found))
    for result in results:
        _print(result)
    if starts:
        console().print(_cold_table(starts))
    if steps:
        console().print(_profile(steps, bounds))


def _known(peers: Sequence[str], names: Iterable[str]) -> None:
    """Refuse a peer of another name."""
    for name in peers:
        if name not in names:
            raise typer.BadParameter(f"expected {', '.join(names)}, got {name!r}", param_hint="--against")


def _answering(
    model: Path, peers: Sequence[str], source: Path | None, counts: Sequence[int], rounds: int, as_json: bool
) -> None:
    """A language model: a prompt and an answer, in processes of their own."""
    from edge.measuring.language import GENERATED, PEERS, PROMPT, answering

    models = {name: Path(own) if own else None for name, _, own in (peer.partition("=") for peer in peers)}
    _known([*models], PEERS)
    found = []
    for count in counts:
        say(f"timing {model.name}{''.join(f' against {name}' for name in models)}, {_threads(count)}, {rounds} turns")
        found += answering(model, against=models, source=source, threads=count, rounds=rounds)
    if as_json:
        emit({"model": model.name, "prompt": PROMPT, "generated": GENERATED, "runs": [asdict(one) for one in found]})
        return
    figures = ("threads", "prompt", "answer", "first token", "peak memory", "same tokens")
    title = f"{model.name}, a prompt of {PROMPT} tokens and {GENERATED} generated"
    rows = table(title, "runtime", *figures, right=figures)
    for one in found:
        rates = f"{PROMPT / one.prefill:.0f} tokens/s", f"{1 / one.token:.1f} tokens/s"
        rows.add_row(one.name, str(one.threads), *rates, seconds_text(one.start), bytes_text(one.memory), f"{one.same}")
    rows.caption = "first token: from the start of a process, the prompt included; same tokens: those before the first"
    rows.caption += " that differs from ours"
    rows.caption_justify = "left"
    console().print(rows)


def _tuned(result: Contest) -> list[Found]:
    from edge.measuring import tune

    def progress(done: int, of: int) -> None:
        say(f"measuring every kernel choice of every step, turn {done} of {of}")

    found = tune.tune(result.bundle, result.inputs, threads=result.threads, progress=progress)
    if found:
        say(f"saved in {tune.keep(found)}")
    return found


def _tuning_table(found: Sequence[Found]) -> RenderableType:
    figures = ("steps", "rule", "its time", "best", "time", "gain")
    rows = table("the fastest kernel for each shape on this machine", "shape", *figures, right=figures)
    for one in sorted(found, key=lambda f: f.best_seconds - f.rule_seconds):
        gain = f"{one.rule_seconds / one.best_seconds - 1:.0%}" if one.gains else ""
        times = seconds_text(one.rule_seconds), seconds_text(one.best_seconds)
        rows.add_row(one.key, str(one.steps), one.rule, times[0], one.best if one.gains else "", times[1], gain)
    rule, best = sum(one.rule_seconds for one in found), sum(map(_kept, found))
    rows.caption = f"{seconds_text(rule)} by default rules, {seconds_text(best)} tuned"
    rows.caption_justify = "left"
    return rows


def _kept(one: Found) -> float:
    return one.best_seconds if one.gains else one.rule_seconds


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isdecimal() and 1 <= int(part) <= 256 for part in parts):
        raise typer.BadParameter(f"expected counts from 1 to 256 like 1,2, got {text!r}", param_hint="--threads")
    return [int(part) for part in parts]


def _cold_starts(result: Contest, source: Path, backend: str) -> tuple[Footprint, ...]:
    from edge.measuring.footprint import footprints

    say("starting each runtime in its own process")
    return footprints(result, source, backend=backend)


def _roofline(threads: int) -> Roofline | None:
    from edge.measuring.roofline import roofline

    return roofline(threads)


def _as_json(
    results: Sequence[Contest], starts: Sequence[Footprint], steps: Sequence[Row], bounds: Roofline | None
) -> dict[str, Any]:
    return {
        "model": results[0].model,
        "runs": [result.as_dict() for result in results],
        "cold": [asdict(start) for start in starts],
        "profile": [row._asdict() for row in steps],
        "roofline": bounds and asdict(bounds),
    }


def _print(result: Contest) -> None:
    out = console()
    figures = ("median", "ratio", "spread", "first", "load", "differs")
    rows = table(f"{result.model}, {_threads(result.threads)}", "runtime", *figures, right=figures)
    for e in result.entries:
        rows.add_row(
            e.name, seconds_text(e.timing.median), *_ratio(e), seconds_text(e.first), seconds_text(e.load), _differs(e)
        )
    if len(result.entries) > 1:
        rows.caption = "ratio: the peer's time divided by ours, median of paired turns; spread: its quartiles"
        rows.caption_justify = "left"
    out.print(rows)
    for peer in result.absent:
        out.print(f"{peer.name}: {peer.reason}", style="yellow")
    cost = result.cost
    native = f"{cost.steps} native steps for {cost.native} operators"
    names = ", ".join(sorted(set(cost.reference)))
    slow = f", {len(cost.reference)} on the NumPy reference: {names}" * bool(cost.reference)
    print(f"arena {bytes_text(cost.arena_bytes)}, {native}{slow}")


def _ratio(entry: Entry) -> tuple[str, str]:
    r = entry.ratio
    return ("", "") if r is None else (f"{r.median:.2f}", f"{r.low:.2f}–{r.high:.2f}")


def _differs(entry: Entry) -> str:
    if entry.form:
        return f"ran {entry.form}"
    return "" if entry.difference is None else f"{entry.difference:.1e}"


def _cold_table(starts: Sequence[Footprint]) -> RenderableType:
    figures = ("cold start", "peak memory", "beyond NumPy")
    base = starts[0]
    rows = table("from process start to the first result", "runtime", *figures, right=figures)
    for start in starts:
        more = "" if start is base else f"{seconds_text(start.seconds - base.seconds)}, "
        more += "" if start is base else bytes_text(start.peak_bytes - base.peak_bytes)
        rows.add_row(start.name, seconds_text(start.seconds), bytes_text(start.peak_bytes), more)
    return rows


def _profile(steps: Sequence[Row], bounds: Roofline | None) -> RenderableType:
    total = sum(row.seconds for row in steps)
    figures = ("time", "share", "GFLOP/s", "GB/s", "of roofline")
    rows = table("profile", "operators", "kernel", *figures, "", right=figures, fold=("operators",))
    for row in sorted(steps, key=lambda r: -r.seconds):
        share = row.seconds / total
        rates = (f"{amount / row.seconds / 1e9:.1f}" if amount else "" for amount in (row.operations, row.bytes))
        roof = f"{_least(row, bounds) / row.seconds:.0%}" if bounds and row.bytes else ""
        bar = "█" * round(20 * share)
        rows.add_row(_short(row.node), row.kernel, seconds_text(row.seconds), f"{share:.1%}", *rates, roof, bar)
    rows.caption = f"{len(steps)} steps, {seconds_text(total)} in total" + _whole(steps, bounds)
    rows.caption_justify = "left"
    return rows


def _short(node: str) -> str:
    """The first name of a fused node and how many others it has; TensorFlow Lite joins the names with semicolons."""
    name, *others = node.split(";")
    return f"{name} and {len(others)} more" if others else name


def _least(row: Row, bounds: Roofline) -> float:
    return bounds.seconds(row.kernel, row.operations, row.bytes)


def _whole(steps: Sequence[Row], bounds: Roofline | None) -> str:
    """The share of the roofline that all steps reach together, and the roofline itself."""
    if bounds is None:
        return ""
    counted = [row for row in steps if row.bytes]
    spent = sum(row.seconds for row in counted)
    share = f", {sum(_least(row, bounds) for row in counted) / spent:.0%} of the roofline" if spent else ""
    fewer = "\nWinograd needs fewer multiplications than counted here: its share may exceed 100%"
    return share + fewer * any("winograd" in row.kernel for row in counted) + f"\nroofline, {bounds.text}"


def _threads(count: int) -> str:
    return f"{count} thread{'s' * (count != 1)}"
