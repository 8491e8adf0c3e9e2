"""The work of one process of a study: it trains trials one after another and asks after each evaluation whether to go
on. Messages are JSON data."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from cloud.errors import NotFiniteError
from cloud.track.tracked import Tracked
from cloud.train.callbacks import Callback
from cloud.train.jobs.config import Config, parse
from cloud.train.jobs.job import Job, exported, job_of
from cloud.train.jobs.recording import copies_of, tracked_as
from cloud.train.many.preempt import stopping_on_signals
from cloud.train.reports import Evaluation

__all__ = ["Message", "measured", "serve"]

Message = dict[str, Any]


def serve(take: Callable[[], Message | None], tell: Callable[[Message], None]) -> None:
    """Run every trial that `take` gives, until it gives None. `tell` gets, each with the trial's "number":

    {"kind": "evaluated", "value", "last", "run"}, to which `take` answers {"stop"}; {"kind": "value", "value"}, to
    which it answers {"keep"}; and one that ends the trial: {"kind": "finished" or "pruned" or "failed", "why", "value",
    "files", "seconds"}.
    """
    while (order := take()) is not None:
        number, begun = int(order["number"]), time.monotonic()

        def say(message: Message, number: int = number) -> None:
            tell({"number": number, **message})

        try:
            ended = _run(order, take, say)
        except NotFiniteError as error:
            ended = {"kind": "pruned", "why": str(error)}
        except Exception as error:  # user code: models, data and losses raise what they like
            ended = {"kind": "failed", "why": f"{type(error).__name__}: {error}"}
        say({**ended, "seconds": time.monotonic() - begun})


def measured(found: Evaluation, metric: str) -> float:
    """The metric of an evaluation."""
    return float(found.loss if metric == "loss" else found.metrics[metric])


class _Asking(Callback):
    """Tells of each evaluation, and stops the trainer if the answer says so."""

    def __init__(self, job: Job, metric: str, tracked: Tracked | None, ask: Callable[[Message], Message]) -> None:
        self._job, self._metric, self._tracked, self._ask = job, metric, tracked, ask
        self.pruned = False

    def evaluated(self, step: int, found: Evaluation) -> None:
        """Ask whether the trial goes on."""
        if self.pruned:
            return
        run = self._tracked.run if self._tracked is not None else ""
        said = {"kind": "evaluated", "value": measured(found, self._metric), "last": self._job.over, "run": run}
        if self._ask(said)["stop"]:
            self.pruned = True
            if self._tracked is not None:
                self._tracked.stopping(f"pruned: behind other trials after step {step}")
            self._job.trainer.stop()


def _run(order: Mapping[str, Any], take: Callable[[], Message | None], tell: Callable[[Message], None]) -> Message:
    def ask(message: Message) -> Message:
        tell(message)
        answer = take()
        if answer is None:
            raise SystemExit
        return answer

    config = parse(order["words"], Path(order["folder"]))
    job = job_of(config)
    tracked = _tracked(job, config, order)
    asking = _Asking(job, order["metric"], tracked, ask)
    job.trainer.watch(*([tracked] if tracked is not None else []), asking)

    def stop(why: str) -> None:
        if tracked is not None:
            tracked.stopping(why)
        job.trainer.stop()

    in_main = threading.current_thread() is threading.main_thread()
    with stopping_on_signals(stop, [signal.SIGTERM]) if in_main else nullcontext(list[str]()) as came:
        job.fit()
    if came:
        raise SystemExit
    ended: Message = {"kind": "pruned"}
    if not asking.pruned:
        found = job.trainer.evaluate(job.examples.validation, job.batch)  # of the weights that are used in the end
        ended = {"kind": "finished", "value": measured(found, order["metric"])}
        if ask({"kind": "value", "value": ended["value"]})["keep"]:
            ended["files"] = _kept(job, config, Path(order["files"]), tracked)
    if tracked is not None:
        tracked.close()
    return ended


def _tracked(job: Job, config: Config, order: Mapping[str, Any]) -> Tracked | None:
    if not config.track.keep:
        return None
    return tracked_as(
        job, Path(order["store"]), name=order["name"], seed=config.train.seed, profile=config.track.profile,
        copies=copies_of(config.track), parent=order["parent"],
    )  # fmt: skip


def _kept(job: Job, config: Config, folder: Path, tracked: Tracked | None) -> dict[str, str]:
    """The files of [export], in the folder of the trial."""
    said = config.export
    named = {kind: getattr(said, kind) for kind in ("onnx", "bundle", "adapter")}
    names = {kind: os.fspath(folder.absolute() / Path(name).name) for kind, name in named.items() if name}
    if not names:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    made = exported(job, msgspec.structs.replace(config, export=msgspec.structs.replace(said, **names)))
    for kind, path in made.items():
        if tracked is not None:
            tracked.left(kind, path)
    return {kind: os.fspath(path) for kind, path in made.items()}
