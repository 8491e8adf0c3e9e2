"""What each step of a cycle does. All may be killed at any moment and done again: they find what is there already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud.hub.loop import lineage
from cloud.hub.loop.doing import Doing, EndedError, WaitsError
from cloud.hub.loop.learning import LEARNED, MODEL, learn, with_parameters
from cloud.hub.loop.plan import Canary, rollout_of
from cloud.hub.repository.draft import Outcome
from cloud.hub.repository.origin import origin

__all__ = ["DO", "undo"]


def _judge(doing: Doing) -> dict[str, Any]:
    budget, learned = doing.plan.file.budget, doing.cycle.results["learn"]
    value, before = learned.get("value"), learned.get("before")
    if value is None:
        raise EndedError(f"budget.figure: expected {budget.figure} in the run's last evaluation, got none")
    if value < budget.least:
        raise EndedError(f"{budget.figure} is {value:.4f}, less than budget.least = {budget.least:g}")
    if before is not None and value < before - budget.loss:
        raise EndedError(f"{budget.figure} fell from {before:.4f} to {value:.4f}, by more than {budget.loss:g}")
    return {"figure": budget.figure, "value": value, "before": before}


def _convert(doing: Doing) -> dict[str, Any]:
    from converter import convert

    said, plan = doing.plan.file.convert, doing.plan
    path = _made(doing)
    if not path.exists():
        federated = plan.file.learn.kind == "federated"
        source = with_parameters(plan.path(said.source), doing.folder / LEARNED) if federated else doing.folder / MODEL
        convert(
            source, output=path, trainable=said.trainable or None, quantize=said.quantize,  # type: ignore[arg-type]
            calibration=str(plan.path(said.calibration)) if said.calibration else None,
        )  # fmt: skip
    return {"bytes": path.stat().st_size}


def _made(doing: Doing) -> Path:
    """The new bundle, named as on devices."""
    folder = doing.folder / "release"
    folder.mkdir(exist_ok=True)
    return folder / doing.file(doing.based_on())


def _sign(doing: Doing) -> dict[str, Any]:
    plan, before, learned = doing.plan, doing.based_on(), doing.cycle.results["learn"]
    made, files = _made(doing), {}
    for name, file in before.files.items():
        files[name] = made.parent / name
        if name != made.name:
            doing.releases.write_file(file, files[name])
    said = origin(files) | lineage.of_release(plan.loop.name, doing.cycle.number, doing.cycle.cause["text"], learned)
    added = doing.releases.add(plan.loop.application, doing.version, files, before.requirements, said)
    _signed(added.outcome)
    _, outcome = doing.releases.promote(plan.loop.application, doing.version, plan.loop.candidates)
    _signed(outcome)
    return {"version": doing.version, "pieces": added.pieces, "digest": added.release.files[made.name].digest}


def _promote(doing: Doing) -> dict[str, Any]:
    plan = doing.plan
    _, outcome = doing.releases.promote(plan.loop.application, doing.version, plan.loop.channel)
    _signed(outcome)
    return {"version": doing.version, "channel": plan.loop.channel}


def _signed(outcome: Outcome) -> None:
    """Raises WaitsError while keys that are not here have to sign."""
    if outcome.waiting:
        names = ", ".join(outcome.waiting)
        raise WaitsError(f"signatures of {names} are missing: msedge hub sign, by who has the keys")


def _canary(doing: Doing) -> dict[str, Any]:
    return _rolled(doing, doing.plan.file.canary, doing.plan.loop.candidates)


def _rollout(doing: Doing) -> dict[str, Any]:
    return _rolled(doing, doing.plan.file.rollout, doing.plan.loop.channel)


def _rolled(doing: Doing, part: Canary, channel: str) -> dict[str, Any]:
    """A rollout from its start, or from wherever it is, to its end."""
    there = [one for one in _rollouts(doing) if one["plan"]["channel"] == channel]
    plan = rollout_of(doing.plan, part, doing.version, channel)
    found = there[0] if there else doing.client.json("POST", "/v1/rollouts", plan)
    told = ""
    while found["status"] in ("running", "paused"):
        words = f"{found['status']} at {found['percent']:g} %: {found['members']} devices, {found['good']} good, " \
                f"{found['bad']} bad, {found['open']} open"  # fmt: skip
        if words != told:
            doing.say(words)
            told = words
        doing.wait()
        found = doing.client.json("GET", f"/v1/rollouts/{found['id']}")
    if found["status"] != "completed":
        raise EndedError(f"rollout {found['id']} was {found['status']}: {found['reason']}")
    return {"rollout": found["id"], **{key: found[key] for key in ("members", "good", "bad", "neutral")}}


def _rollouts(doing: Doing) -> list[dict[str, Any]]:
    """The rollouts of this cycle's version, the newest first."""
    found = doing.client.json("GET", "/v1/rollouts")["rollouts"]
    mine = (doing.plan.loop.application, doing.version)
    return [one for one in found if (one["plan"]["application"], one["plan"]["version"]) == mine]


def undo(doing: Doing) -> None:
    """After a cycle that failed: take its version back, wherever it is."""
    application = doing.plan.loop.application
    for one in _rollouts(doing):
        if one["status"] != "aborted":
            doing.client.json("POST", f"/v1/rollouts/{one['id']}/abort", {"why": doing.cycle.reason[:500]})
    for name, channel in doing.releases.channels(application).items():
        if doing.version in channel.versions:
            doing.releases.promote(application, doing.version, name, withdraw=True)


DO: Mapping[str, Callable[[Doing], dict[str, Any]]] = {
    "learn": learn,
    "judge": _judge,
    "convert": _convert,
    "sign": _sign,
    "canary": _canary,
    "promote": _promote,
    "rollout": _rollout,
}
"""By step: what it does. Each returns its result in JSON's types."""
