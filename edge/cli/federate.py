"""`msedge federate`: a federated run, simulated on this machine or on real devices through a Flower SuperLink."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.fleet_live import live
from edge.cli.options import Json
from edge.cli.output import bytes_text, console, emit, say, seconds_text, table
from federated.errors import FederatedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from federated.runs import Run

__all__ = ["federate", "refuse_for", "show", "show_other"]

ALONE = {
    "init": ("init",),
    "render": ("render", "report"),
    "history": ("history", "config", "as_json"),
    "return_to": ("return_to", "config", "as_json"),
}
"""Options that do no run, and the parameters that may be given with each."""
TROUBLES = {
    "limited": "cut to limits.influence",
    "lost_evaluations": "lost evaluations",
    "diverged_evaluations": "evaluations that diverged",
}
"""Counts of the report that are shown if there are any."""


def federate(
    context: typer.Context,
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The run's configuration; --init prints a template.")
    ] = None,
    simulate: Annotated[
        int | None,
        typer.Option("--simulate", metavar="N", min=0, help="Simulate N devices on this machine; 0: all data.shards."),
    ] = None,
    superlink: Annotated[
        str | None, typer.Option("--superlink", metavar="HOST:PORT", help="Run on devices of this Flower SuperLink.")
    ] = None,
    certificates: Annotated[
        Path | None,
        typer.Option("--certificates", metavar="CA.crt", help="CA certificate of the SuperLink; without it: no TLS."),
    ] = None,
    aggregator: Annotated[
        Path | None,
        typer.Option("--aggregator", metavar="SOCKET", help="With --superlink: add up for the server above it."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="out.html", help="Write a report of the run as a page.")
    ] = None,
    render: Annotated[
        Path | None, typer.Option("--render", metavar="RUN.json", help="Make the page from a run's report.json.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from state.checkpoint.")] = False,
    history: Annotated[bool, typer.Option("--history", help="List the rounds that [history] kept.")] = False,
    return_to: Annotated[
        int | None,
        typer.Option("--return-to", metavar="ROUND", min=1, help="Let --resume continue from this kept round."),
    ] = None,
    init: Annotated[bool, typer.Option("--init", help="Print a template of the configuration.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model on many devices; their data stays on the devices.

    The devices train a bundle made with `msedge convert --trainable`. The configuration sets the algorithm, the
    selection of devices, the encoding of updates, and the files that are written. A configuration with
    [[analytics]] asks for statistics of the devices' data instead, one with [trees] grows boosted trees.
    """
    _refuse_unused(context)
    if init:
        from federated.config import TEMPLATE

        print(TEMPLATE, end="")
        return
    if render is not None:
        _render(render, report)
        return
    if config is None:
        raise typer.BadParameter("expected a configuration; --init prints a template", param_hint="CONFIG.toml")
    if history or return_to is not None:
        _earlier(config, return_to, as_json)
        return
    if (simulate is None) == (superlink is None):
        raise typer.BadParameter("expected exactly one of --simulate N and --superlink HOST:PORT")
    if certificates is not None and superlink is None:
        raise typer.BadParameter("only used with --superlink, which is missing", param_hint="--certificates")
    if aggregator is not None and (superlink is None or resume):
        why = "an aggregator has nothing to resume" if resume else "only used with --superlink, which is missing"
        raise typer.BadParameter(why, param_hint="--aggregator")
    if superlink is not None and report is not None:
        raise typer.BadParameter("omit --report: the server writes report.json; --render makes the page from it")
    if report is not None and not report.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {str(report.parent)!r}; create it first", param_hint="--report")
    if superlink is not None:
        _submit(config, superlink, certificates, resume, aggregator, as_json)
    else:
        _simulate(config, simulate or 0, resume, report, as_json)


def _refuse_unused(context: typer.Context) -> None:
    """Some options do no run: refuse the options of a run, which would have no effect."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    for only, allowed in ALONE.items():
        for name in given if only in given else ():
            if name not in allowed:
                hint = "CONFIG.toml" if name == "config" else _option(name)
                raise typer.BadParameter(f"not used with {_option(only)}; omit it", param_hint=hint)


def _option(name: str) -> str:
    return "--" + name.removeprefix("as_").replace("_", "-")


def _earlier(config: Path, number: int | None, as_json: bool) -> None:
    """List the kept rounds, or return to one of them."""
    from federated.config import read
    from federated.run import go_back, opened, rounds_kept

    words = read(config)
    _, start = opened(words)
    if number is not None:
        federation = go_back(words, start, number)
        made = federation.returns[-1] | {"learned": federation.learned, "rounds": words.rounds.count}
        if as_json:
            emit(made)
        else:
            print(
                f"round {number}: {made['learned']} of {made['rounds']} rounds are learned; --resume continues from it"
            )
        return
    found = rounds_kept(words, start)
    if as_json:
        emit({"rounds": found})
        return
    heads = ("learned", "training", "held out", "bytes", "digest")
    rows = table("kept rounds: accuracy before adapting; *: of the current model", "round", *heads, right=heads)
    for each in found:
        figures = [_accuracy((each["evaluation"] or {}).get(group)) for group in ("training", "held_out")]
        mark = f"{each['round']}{' *' if each['current'] else ''}"
        rows.add_row(mark, str(each["learned"]), *figures, bytes_text(each["bytes"]), each["digest"])
    console().print(rows)


def _accuracy(survey: Mapping[str, Any] | None) -> str:
    summary = (survey or {}).get("summary")
    return "" if summary is None else f"{summary['accuracy_before']['mean'] + 0.0:.3f}"


def _submit(
    config: Path, superlink: str, certificates: Path | None, resume: bool, aggregator: Path | None, as_json: bool
) -> None:
    """Submit the run; Flower shows the ServerApp's log, one line of JSON per round."""
    from federated.config import read
    from federated.readiness import check
    from federated.runs import of_file
    from federated.transport.submit import submit
    from lite_runtime import bundle

    if (other := of_file(config)) is not None:
        refuse_for(other, resume, None, aggregator)
    else:
        words = read(config)
        check(words, bundle.read(words.path(words.model.bundle)))  # refused now, not by the ServerApp
    if certificates is None:
        say("warning: without --certificates the SuperLink is not authenticated and the connection is not encrypted")
    log = sys.stderr if as_json else None
    submit(config, superlink, certificates=certificates, resume=resume, aggregator=aggregator or "", log=log)
    if as_json:
        emit({"config": str(config), "superlink": superlink, "exit_code": 0})


def _simulate(config: Path, devices: int, resume: bool, page: Path | None, as_json: bool) -> None:
    from federated.config import read
    from federated.run import fleet_of, report, simulate
    from federated.runs import of_file

    begun = perf_counter()
    if (other := of_file(config)) is not None:
        refuse_for(other, resume, page)
        _simulate_other(other, devices, resume, as_json)
        return
    words = read(config)
    fleet = fleet_of(words, devices)
    say(f"{words.algorithm.name}: {len(fleet.shards)} devices, {words.rounds.count} rounds")
    with live(words.rounds.count) as watch:
        federation = simulate(words, fleet, resume=resume, watch=watch)
    show(report(federation) | {"wall_seconds": perf_counter() - begun}, page, as_json)


def show(made: Mapping[str, Any], page: Path | None, as_json: bool) -> None:
    """The report of a run that trained a model."""
    if page is not None:
        _write_page(page, made)
    if as_json:
        emit(made)
    else:
        _print(made)


def refuse_for(other: Run, resume: bool, page: Path | None, aggregator: Path | None = None) -> None:
    """Refuse the options that such a run does not have."""
    for option, given in (
        ("--resume", resume and other.kind == "analytics"),
        ("--report", page is not None),
        ("--aggregator", aggregator is not None),
    ):
        if given:
            raise typer.BadParameter(f"not used for a run of [{other.kind}]; omit it", param_hint=option)


def _simulate_other(other: Run, devices: int, resume: bool, as_json: bool) -> None:
    from federated.runs import simulate

    begun = perf_counter()
    data = other.shards(devices)
    say(f"{other.kind}: {len(data)} devices")
    show_other(other, simulate(other, data, resume=resume) | {"wall_seconds": perf_counter() - begun}, as_json)


def show_other(other: Run, made: dict[str, Any], as_json: bool) -> None:
    """The report of a run without a model to train."""
    made.pop("model", None)  # in its own file
    if as_json:
        emit(made)
        return
    if other.kind == "trees":
        leaves = sum(row["leaves"] for row in made["results"])
        print(f"{made['objective']}: {len(made['results'])} rounds, {leaves} leaves, in {other.config.report.model}")
    for result in made["results"] if other.kind == "analytics" else ():
        print(result_text(result))
    cost = "" if made["epsilon"] is None else f"; epsilon {made['epsilon']:.3g} at delta {made['delta']:g}"
    print(
        f"{made['questions']} questions to {made['devices']} devices in {seconds_text(made['wall_seconds'])}{cost}; "
        f"{bytes_text(made['bytes_up'])} up, {bytes_text(made['bytes_down'])} down"
    )


def result_text(result: Mapping[str, Any]) -> str:
    """One result of a run without rounds, for a terminal."""
    name, error = f"{result['name']}: ", result.get("error", 0.0)
    if result["kind"] == "mean":
        return f"{name}mean {result['mean']:.6g} ± {error:.2g}, standard deviation {result['standard_deviation']:.4g}"
    if result["kind"] == "histogram":
        pairs = zip(result["edges"], result["counts"], strict=False)
        return f"{name}each ± {error:.2g}\n" + "\n".join(f"  from {edge:.6g}: {count:.6g}" for edge, count in pairs)
    if result["kind"] == "quantiles":
        lines = [f"  {q['at']:g}: {q['value']:.6g} ({q['low']:.6g} to {q['high']:.6g})" for q in result["quantiles"]]
        return f"{name}quantiles, with the interval of 95 %\n" + "\n".join(lines)
    lines = [f"  {word['word']}{'…' if word['cut'] else ''}: {word['weight']:.6g}" for word in result["words"]]
    heads = f"{name}words from {result['threshold']:.4g} on, each ± {error:.2g}"
    return "\n".join([heads, *lines])


def _render(source: Path, page: Path | None) -> None:
    if page is None:
        raise typer.BadParameter("--render needs the page's file name: add --report out.html")
    try:
        _write_page(page, json.loads(source.read_text(encoding="utf-8")))
    except OSError as error:
        raise FederatedError(f"cannot read {str(source)!r}: {error.strerror}; check the path") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FederatedError(
            f"{str(source)!r}: expected the report of a federated run (report.json in its configuration), got "
            f"something else ({type(error).__name__}: {error})"
        ) from error


def _write_page(path: Path, made: Mapping[str, Any]) -> None:
    from edge.pages.fleet_page import fleet_page
    from lite_runtime._files import write_atomically

    write_atomically(path, fleet_page(made).encode())


def _print(made: Mapping[str, Any]) -> None:
    evaluated = [row for row in made["rows"] if "evaluation" in row]
    if evaluated and any("perplexity" in survey for survey in evaluated[-1]["evaluation"].values()):
        _print_perplexity(made["start"], evaluated[-1])
    elif evaluated:
        heads = ("asked", "count", "diverged", "before", "after", "worst before", "worst after")
        title = f"accuracy after round {evaluated[-1]['round']}; worst: mean of the worst 10 % of devices"
        rows = table(title, "devices", *heads, right=heads)
        for name, survey in evaluated[-1]["evaluation"].items():
            label = {"training": "training", "held_out": "held out"}[name]
            if (summary := survey["summary"]) is None:
                rows.add_row(label, str(survey["asked"]), "0", *[""] * 5)
            else:
                pairs = (summary["accuracy_before"], summary["accuracy_after"])
                figures = [pair["mean"] for pair in pairs] + [pair["worst_decile"] for pair in pairs]
                diverged = "–" if summary["diverged"] is None else summary["diverged"]
                counts = (survey["asked"], summary["devices"], diverged)
                shown = ("–" if figure is None else f"{figure + 0.0:.3f}" for figure in figures)
                rows.add_row(label, *map(str, counts), *shown)
        console().print(rows)
    print(
        f"{made['algorithm']}: {made['rounds']} rounds with {made['devices']} devices in "
        f"{seconds_text(made['wall_seconds'])}; "
        f"{bytes_text(made['bytes_up'])} up, {bytes_text(made['bytes_down'])} down"
    )
    for each in made["returns"]:
        print(f"returned: after round {each['after']} to the model of round {each['to']}")
    refused = Counter(made["turned_away"]) + Counter(made["refused"])
    print(f"refused: {_counts(refused) or 'nothing'}")
    for key, words in TROUBLES.items():
        if made[key]:
            print(f"{words}: {_counts(made[key]) if isinstance(made[key], dict) else made[key]}")


def _print_perplexity(start: Mapping[str, Any] | None, row: Mapping[str, Any]) -> None:
    """What a language model makes of devices' texts: before the first round if that is known, and after this one."""
    heads = ("asked", "count", "at the start", "before", "after")
    rows = table(f"perplexity after round {row['round']}", "devices", *heads, right=heads)
    first = (start or {}).get("evaluation", {})
    for name, survey in row["evaluation"].items():
        known = [first.get(name, {}).get("perplexity", {}).get("before")]
        known += [survey.get("perplexity", {}).get(when) for when in ("before", "after")]
        count = survey["summary"]["devices"] if survey["summary"] else 0
        told = ("–" if figure is None else f"{figure:.2f}" for figure in known)
        rows.add_row(name.replace("_", " "), str(survey["asked"]), str(count), *told)
    console().print(rows)


def _counts(counted: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counted.items()))
