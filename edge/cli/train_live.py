"""The progress of a training run on stderr: position, speed, loss, and the parts of a step's time.

If stderr is not a terminal: one plain line per epoch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cloud.track.facts import device_memory
from cloud.train.callbacks import Callback
from cloud.train.reports import EpochReport, Evaluation
from edge.cli.fleet_live import sparkline
from edge.cli.output import bytes_text, console, say, seconds_text, table

if TYPE_CHECKING:
    from rich.console import Group

    from cloud.train.callbacks import Fitting

__all__ = ["Lines", "Screen", "watching"]

SHOWN, BAR, POINTS = 6, 32, 48
"""Epochs in the table; cells of the bar; values in the sparkline."""


@contextmanager
def watching(epochs: int, steps: int) -> Iterator[Callback]:
    """The callback that shows a run of `epochs` epochs and `steps` steps in total (0: unknown)."""
    out = console(stderr=True)
    if not out.is_terminal:
        yield Lines()
        return
    from rich.live import Live

    screen = Screen(epochs, steps)
    with Live(console=out, refresh_per_second=4, get_renderable=screen.show):
        yield screen


class Lines(Callback):
    """Prints one line per epoch."""

    _held: tuple[int, Evaluation] | None = None
    """An evaluation that is not printed yet, and its step."""

    def started(self, trainer: Fitting) -> None:
        """Start the clock."""
        self._begun = time.monotonic()

    def placed(self, plan: Mapping[str, Any]) -> None:
        """Print the plan that was chosen."""
        say(plan_text(plan, time.monotonic() - self._begun))

    def epoch_done(self, report: EpochReport) -> None:
        """Print the epoch's loss and metrics."""
        self._held = None
        parts = [f"train {evaluation_text(report.training)}"]
        if report.validation is not None:
            parts.append(f"validation {evaluation_text(report.validation)}")
        parts.append(seconds_text(report.seconds))
        say(f"epoch {_of(report.epoch, report.epochs)}: {'; '.join(parts)}")

    def evaluated(self, step: int, found: Evaluation) -> None:
        """Keep an evaluation; one between the steps of an epoch is printed with the next step."""
        self._held = step, found

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print an evaluation that was between two steps."""
        if self._held is not None:
            say(f"step {self._held[0]}: validation {evaluation_text(self._held[1])}")
            self._held = None

    def noted(self, step: int, text: str) -> None:
        """Print what was decided."""
        say(f"step {step}: {text}")

    def saved(self, path: Any) -> None:
        """Print the path of the checkpoint."""
        say(f"checkpoint {path}")


class Screen(Callback):
    """The state of a run; `show` draws it."""

    def __init__(self, epochs: int, steps: int) -> None:
        self.epochs, self.steps = epochs, steps
        self.reports: list[EpochReport] = []
        self.now: Mapping[str, float] = {}
        self.step = self._first = self.done = 0
        self.kept = self.plan = self.tested = self.note = ""
        self._losses: deque[float] = deque(maxlen=4096)
        self._begun = self._clock = time.monotonic()
        self._rows = 0.0

    def started(self, trainer: Fitting) -> None:
        """Prepare the display; the clock starts with the first step, so that compilation is not counted."""
        self._clock = self._begun = time.monotonic()
        self._first = self.step = trainer.steps_done
        self.done = trainer.epochs_done

    def placed(self, plan: Mapping[str, Any]) -> None:
        """Keep the plan for the display."""
        self.plan = plan_text(plan, time.monotonic() - self._begun)

    def stepped(self, step: int, metrics: Mapping[str, float]) -> None:
        """Keep the step's number and metrics for the display."""
        if step == self._first + 1:
            self._begun = time.monotonic()
        else:
            self._rows += metrics.get("examples", 0.0)
        self.step, self.now, self._clock = step, metrics, time.monotonic()
        self._losses.append(metrics["loss"])

    def evaluated(self, step: int, found: Evaluation) -> None:
        """Keep an evaluation for the display."""
        self.tested = f"validation after step {step}: {evaluation_text(found)}"

    def noted(self, step: int, text: str) -> None:
        """Keep a decision for the display."""
        self.note = f"step {step}: {text}"

    def epoch_done(self, report: EpochReport) -> None:
        """Keep the epoch's report for the display."""
        self.reports.append(report)
        self.done, self.tested = report.epoch, ""

    def saved(self, path: Any) -> None:
        """Keep the checkpoint's path for the display."""
        self.kept = str(path)

    def show(self) -> Group:
        """The current content of the screen."""
        from rich.console import Group
        from rich.text import Text

        lines = [self._progress(), f"loss {sparkline(self._thinned())}  {self.now.get('loss', float('nan')):.4f}"]
        kept = self.kept and f"checkpoint {self.kept}"
        more = (self.plan, self._times(), self._memory(), self.tested, self.note, kept)
        lines += [text for text in more if text]
        return Group(*([self._table()] if self.reports else []), Text("\n".join(lines)))

    def _progress(self) -> str:
        done, left = self.step - self._first, self.steps - self.step
        spent = max(self._clock - self._begun, 1e-9)
        epoch = min(self.done + 1, self.epochs or self.done + 1)
        parts = [f"epoch {_of(epoch, self.epochs)}", f"step {self.step}"]
        if self._rows:
            parts.append(f"{self._rows / spent:,.0f} examples/s")
        if "gradient_norm" in self.now:
            parts.append(f"gradient norm {self.now['gradient_norm']:.3g}")
        if self.steps:
            full = round(BAR * min(1.0, self.step / self.steps))
            parts.insert(0, "━" * full + "╌" * (BAR - full))
            if done > 1 and left > 0:
                parts.append(f"{seconds_text(left * spent / (done - 1))} remaining")
        return "  ".join(parts)

    def _thinned(self) -> list[float]:
        """The losses, averaged to as many values as the sparkline shows."""
        values = list(self._losses)
        size = -(-len(values) // POINTS) or 1
        return [sum(part) / len(part) for i in range(0, len(values), size) if (part := values[i : i + size])]

    def _times(self) -> str:
        """The parts of a step's time in the last epoch."""
        if not self.reports or not self.reports[-1].steps:
            return ""
        last = self.reports[-1]
        return "step " + ", ".join(f"{name} {seconds_text(s / last.steps)}" for name, s in last.times.items())

    def _memory(self) -> str:
        found = device_memory()
        return "" if found is None else f"device memory {bytes_text(found[0])} of {bytes_text(found[1])}"

    def _table(self) -> Any:
        names = list(self.reports[-1].training.metrics)
        held_out = self.reports[-1].validation
        tested = names if held_out is None else list(held_out.metrics)
        heads = ("epoch", "loss", *names, "validation", *(f"{name} " for name in tested), "time")
        made = table("", *heads, right=heads)
        for report in self.reports[-SHOWN:]:
            held = report.validation
            made.add_row(
                _of(report.epoch, report.epochs), f"{report.loss:.4f}",
                *(f"{report.training.metrics[name]:.4f}" for name in names),
                "" if held is None else f"{held.loss:.4f}",
                *("" if held is None or name not in held.metrics else f"{held.metrics[name]:.4f}" for name in tested),
                seconds_text(report.seconds),
            )  # fmt: skip
        return made


def _of(epoch: int, epochs: int) -> str:
    """`epochs`: 0 if the number of steps limits the run."""
    return f"{epoch}/{epochs}" if epochs else str(epoch)


def plan_text(plan: Mapping[str, Any], seconds: float) -> str:
    """How the step is sharded over devices, and how long planning took."""
    mesh = f", mesh {' x '.join(map(str, plan['mesh']))}" if "mesh" in plan else ""
    return (
        f"plan: {plan['strategy']}{mesh}; expected {seconds_text(plan['step_seconds'])} per step and "
        f"{bytes_text(plan['peak_bytes'])} per device; planned in {seconds_text(seconds)}"
    )


def evaluation_text(found: Evaluation) -> str:
    """Loss and metrics as one line."""
    return ", ".join([f"loss {found.loss:.4f}", *(f"{name} {value:.4f}" for name, value in found.metrics.items())])
