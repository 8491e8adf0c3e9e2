"""The step that learns: a federated run on devices of the hub, or training in the cloud.

Both leave `learned.json` at their end, and go on from their own checkpoints before that.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud.hub.errors import HubError
from cloud.hub.loop import lineage
from cloud.hub.loop.doing import Doing
from cloud.hub.tasks.exchange import HubExchange
from cloud.hub.tasks.task import Task
from federated.errors import FederatedError
from federated.tables import Reader
from lite_runtime import bundle
from lite_runtime._files import write_atomically

if TYPE_CHECKING:
    import onnx_ir as ir

    from federated.server.federation import Federation

SLOTS = ("optimizer/", "hyper/")
"""State of a bundle's own optimiser, which no model has, begins so."""
__all__ = ["LEARNED", "MODEL", "learn", "with_parameters"]

LEARNED, MODEL, RESULT, MEMBERS = "learned.mslite", "model.onnx", "learned.json", "members.json"


def learn(doing: Doing) -> dict[str, Any]:
    """Learn; what came of it, in JSON's types: `figure` and its `value` (and `before` the run) for the budget."""
    there = doing.folder / RESULT
    if there.exists():
        found: dict[str, Any] = json.loads(there.read_bytes())
        return found
    made = (_federated if doing.plan.file.learn.kind == "federated" else _trained)(doing)
    write_atomically(there, json.dumps(made).encode(), HubError)
    return made


# -- on devices --------------------------------------------------------------------------------------------------------


def _federated(doing: Doing) -> dict[str, Any]:
    from federated.config import parse
    from federated.run import opened, run

    version, base = doing.base()
    config = parse(_settings(doing, base), doing.plan.path(doing.plan.file.learn.config).resolve().parent)
    _, start = opened(config)
    exchange = HubExchange(doing.client, f"{doing.plan.loop.name}-{doing.cycle.number}", _task(doing, start.bundle))
    members = doing.folder / MEMBERS
    if members.exists():
        exchange.seen |= json.loads(members.read_bytes())

    def watch(row: Mapping[str, Any]) -> None:
        write_atomically(members, json.dumps(exchange.seen).encode(), HubError)
        count = f"{row['answered']} of {row['asked']} devices"
        doing.say(f"round {row['round']} of {config.rounds.count}: {count} answered")
        doing.look()

    resume = (doing.folder / "run.state").exists()
    try:
        federation = run(config, start, exchange, resume=resume, watch=watch)
    finally:
        exchange.close()
    return _found(doing, federation, version, start.bundle, exchange.seen)


def _settings(doing: Doing, base: Path) -> dict[str, Any]:
    """The run's configuration, with the loop's own files."""
    words = Reader(FederatedError, "msedge federate --init prints a template").file(
        doing.plan.path(doing.plan.file.learn.config)
    )
    folder = doing.folder.resolve()
    words = {**words, "model": {"bundle": str(base)}}
    words["state"] = {**words.get("state", {}), "checkpoint": str(folder / "run.state")}
    words["report"] = {**words.get("report", {}), "json": str(folder / "run.json"), "bundle": str(folder / LEARNED)}
    if doing.plan.file.budget.loss < 1 and "gate" not in words:
        words["gate"] = {"against": "start", "margin": 1.0}  # evaluates the start; the budget judges
    return words


def _task(doing: Doing, digest: str) -> Task:
    from federated.client.device import VERSION

    said = doing.plan.file.learn
    return Task(
        population=doing.plan.loop.application, plan=VERSION, bundle=digest, cohort=dict(said.cohort),
        conditions=said.conditions, devices=said.devices, heartbeat=said.heartbeat,
    )  # fmt: skip


def _found(
    doing: Doing, federation: Federation, version: str, base: str, seen: Mapping[str, Any]
) -> dict[str, Any]:  # fmt: skip
    budget = doing.plan.file.budget
    devices = {
        name: {**seen.get(name, {}), "answered": member.answered}
        for name, member in federation.members.items() if member.answered
    }  # fmt: skip
    document = {
        "loop": doing.plan.loop.name, "cycle": doing.cycle.number, "cause": dict(doing.cycle.cause),
        "base": {"version": version, "bundle": base}, "run": federation.run, "rounds": federation.learned,
        "bundle": bundle.read(doing.folder / LEARNED).digest, "devices": devices,
    }  # fmt: skip
    evaluations: list[dict[str, Any]] = [row["evaluation"] for row in federation.rows if row.get("evaluation")]
    first, last = (federation.first or {}).get("evaluation", {}), evaluations[-1] if evaluations else {}
    return {
        "kind": "federated", "base": version, "run": federation.run, "rounds": federation.learned,
        "devices": len(devices), "examples": sum(one.get("examples", 0) for one in devices.values()),
        "data": lineage.write(doing.folder, document), "figure": budget.figure,
        "value": _figure(last, budget.group, budget.figure), "before": _figure(first, budget.group, budget.figure),
    }  # fmt: skip


def _figure(evaluation: Mapping[str, Any], group: str, figure: str) -> float | None:
    summary = evaluation.get(group, {}).get("summary") or {}
    found = summary.get(figure)
    return None if found is None else float(found["mean"] if isinstance(found, Mapping) else found)


# -- in the cloud ------------------------------------------------------------------------------------------------------


def _trained(doing: Doing) -> dict[str, Any]:
    from cloud.errors import TrainError
    from cloud.train.jobs.config import parse
    from cloud.train.jobs.job import exported, job_of

    budget, path = doing.plan.file.budget, doing.plan.path(doing.plan.file.learn.config)
    words = Reader(TrainError, "msedge train --template prints one").file(path)
    folder = doing.folder.resolve()
    words["checkpoint"] = {**words.get("checkpoint", {}), "folder": str(folder / "checkpoints")}
    words["export"] = {"onnx": str(folder / MODEL)}
    config = parse(words, path.resolve().parent)
    job = job_of(config)
    if any((folder / "checkpoints").glob("*/*")):
        with contextlib.suppress(TrainError):  # none was complete
            doing.say(f"training goes on from {job.trainer.resume()}")
    reports = job.fit()
    exported(job, config)
    last = reports[-1].validation if reports else None
    figures = {"loss": last.loss, **last.metrics} if last is not None else {}
    document = {
        "loop": doing.plan.loop.name, "cycle": doing.cycle.number, "cause": dict(doing.cycle.cause),
        "data": job.examples.digest, "model": job.model, "onnx": sha256((folder / MODEL).read_bytes()).hexdigest(),
        "steps": job.trainer.steps_done,
    }  # fmt: skip
    return {
        "kind": "train", "base": doing.base()[0], "rounds": job.trainer.epochs_done, "figure": budget.figure,
        "value": figures.get(budget.figure), "before": None, "data": lineage.write(doing.folder, document),
    }  # fmt: skip


# -- the model ---------------------------------------------------------------------------------------------------------


def with_parameters(source: Path, learned: Path) -> ir.Model:
    """The ONNX model that a bundle was made of, with the parameters that the bundle has now. Raises HubError if they
    are not those of this model."""
    import onnx_ir as ir

    model, state = ir.load(source), bundle.read(learned).state
    there = model.graph.initializers
    for name, value in state.items():
        if name.startswith(SLOTS):
            continue
        known = there.get(name)
        shape = None if known is None or known.shape is None else tuple(known.shape)
        if known is None or shape != value.shape:
            raise HubError(
                f"convert.source: expected the model of the devices' bundle, got one without {name!r} of shape "
                f"{value.shape}; give the file that it was converted from"
            )
        known.const_value = ir.tensor(value, name=name)
    return model
