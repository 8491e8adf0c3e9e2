"""The progress of a federated run on stderr: the last rounds as a table, earlier ones as sparklines.

If stderr is not a terminal: one plain line per round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from edge.cli.output import bytes_text, console, say, seconds_text, table

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["figures", "live", "sparkline"]

Row = Mapping[str, Any]
SHOWN, WIDE, REASONS = 8, 48, 3
"""Rounds in the table; characters in a sparkline; reasons for refusals shown at a time."""
BLOCKS = "▁▂▃▄▅▆▇█"
NAMES = {"training": "training", "held_out": "held out"}


@contextmanager
def live(rounds: int) -> Iterator[Callable[[Row], None]]:
    """Give a function to call with each round's row."""
    out = console(stderr=True)
    told: dict[str, str] = {}
    if not out.is_terminal:

        def tell(row: Row) -> None:
            say(f"round {row['round']}/{rounds}: {_words(row)}")
            for line in _news(row, told):
                say(f"  {line}")

        yield tell
        return
    from rich.live import Live

    rows: list[Row] = []
    with Live(console=out, refresh_per_second=4) as screen:

        def show(row: Row) -> None:
            rows.append(row)
            _news(row, told)
            screen.update(_screen(rows, rounds, list(told.values())[-REASONS:]))

        yield show


def _screen(rows: Sequence[Row], rounds: int, reasons: Sequence[str] = ()) -> Group:
    from rich.console import Group
    from rich.text import Text

    heads = ("round", "answered", "loss", "training", "held out", "up", "down", "time")
    shown = table("", *heads, "", right=heads)
    for row in rows[-SHOWN:]:
        _, digits, found = figures(row)
        told = (f"{{:.{digits}f}} → {{:.{digits}f}}".format(*found[name]) if name in found else "" for name in NAMES)
        loss = "" if row["loss"] is None else f"{row['loss']:.3f}"
        sizes = (bytes_text(row["bytes_up"]), bytes_text(row["bytes_down"]), seconds_text(row["seconds"]))
        head = (f"{row['round']}/{rounds}", f"{row['answered']}/{row['asked']}", loss)
        shown.add_row(*head, *told, *sizes, "; ".join(_troubles(row)))
    lines = [f"{'loss':12}{sparkline([row['loss'] for row in rows])}"] if rows else []
    for name, words in NAMES.items():
        adapted = [found[name][1] for row in rows if name in (found := figures(row)[2])]
        if adapted:
            what, digits, _ = figures(rows[-1])
            lines.append(f"{words:12}{sparkline(adapted)}  {what} after adapting {adapted[-1]:.{digits}f}")
    return Group(shown, Text("\n".join([*lines, *reasons])))


def sparkline(values: Sequence[float | None]) -> str:
    """The last values as block characters, scaled between their minimum and maximum; a space for a missing value."""
    last = values[-WIDE:]
    seen = [v for v in last if v is not None]
    low, span = min(seen, default=0.0), (max(seen, default=0.0) - min(seen, default=0.0)) or 1.0
    return "".join(" " if v is None else BLOCKS[round((v - low) / span * (len(BLOCKS) - 1))] for v in last)


def figures(row: Row) -> tuple[str, int, dict[str, tuple[float, float]]]:
    """What is told of an evaluation, its digits, and its values before and after adapting by group of devices: the mean
    accuracy, of a language model the perplexity."""
    surveys = {name: survey for name, survey in row.get("evaluation", {}).items() if survey["summary"]}
    if any("perplexity" in survey for survey in surveys.values()):
        pairs = {name: (each["perplexity"]["before"], each["perplexity"]["after"]) for name, each in surveys.items()}
        return "perplexity", 2, {name: pair for name, pair in pairs.items() if None not in pair}
    found = {}
    for name, survey in surveys.items():
        means = (survey["summary"][f"accuracy_{when}"]["mean"] for when in ("before", "after"))
        before, after = (mean + 0.0 for mean in means)  # + 0.0: without the sign of a negative zero
        found[name] = (before, after)
    return "accuracy", 3, found


def _words(row: Row) -> str:
    """A round as one line."""
    parts = [f"{row['answered']}/{row['asked']} devices"]
    if row["loss"] is not None:
        parts.append(f"loss {row['loss']:.3f}")
    what, digits, found = figures(row)
    for name, (before, after) in found.items():
        told = "" if what == "accuracy" else f"{what} "
        parts.append(f"{name.replace('_', ' ')} {told}{before:.{digits}f} → {after:.{digits}f}")
    parts.append(f"{bytes_text(row['bytes_up'])} up, {bytes_text(row['bytes_down'])} down")
    return "; ".join([*parts, *_troubles(row)])


def _news(row: Row, told: dict[str, str]) -> list[str]:
    """New reasons for refusals, each with the first device it applied to; they are added to `told`."""
    new: dict[str, str] = {}
    surveys = row.get("evaluation", {}).values()
    for detail in (*row.get("details", ()), *(line for survey in surveys for line in survey.get("details", ()))):
        why = detail.partition(": ")[2]
        if why not in told and len(new) < REASONS:
            new.setdefault(why, detail)
    told.update(new)
    return list(new.values())


def _troubles(row: Row) -> Iterator[str]:
    """The problems in a round."""
    if row["refused"]:
        yield "refused " + ", ".join(f"{count} {reason}" for reason, count in row["refused"].items())
    if row["silent"]:
        yield f"{row['silent']} did not answer"
    if row.get("limited"):
        yield "limited " + ", ".join(f"{count} {what}" for what, count in row["limited"].items())
    if row.get("lost_aggregators"):
        yield f"{len(row['lost_aggregators'])} aggregators handed up nothing"
    for name, survey in row.get("evaluation", {}).items():
        if survey.get("diverged"):
            yield f"{len(survey['diverged'])} {NAMES[name]} diverged"
        if survey.get("lost"):
            yield f"{NAMES[name]} lost " + ", ".join(f"{count} {reason}" for reason, count in survey["lost"].items())
    if not row["counted"]:
        yield "too few answers: repeated"
    elif not row["asked"]:
        yield "nobody was drawn"
