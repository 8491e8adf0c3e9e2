"""Complete runs: a fleet simulated in this process, or real devices behind a SuperLink."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from federated.client.device import Device
from federated.client.lite import LiteLearner
from federated.client.state import StateStore
from federated.config import Config, read
from federated.data import shards
from federated.errors import FederatedError
from federated.hierarchy.aggregator import Aggregator
from federated.learner import Batch, Learner
from federated.readiness import check, check_algorithm
from federated.runs import of_file
from federated.server import checkpoint, history
from federated.server.asynchronous import conduct_async
from federated.server.conduct import After, Watch, conduct
from federated.server.federation import Federation, Start
from federated.server.gate import objection
from federated.server.gathering import Exchange
from federated.server.store import CONSENTS, PersonalStore, Retention
from federated.server.sync import sync
from federated.transport import channel
from federated.tree import Tree
from lite_runtime import bundle
from lite_runtime._files import write_atomically
from lite_runtime.language import Adapter

__all__ = [
    "Fleet", "adapter_of", "aggregate", "go_back", "opened", "report", "rounds_kept", "run", "serve", "simulate",
    "start_of",
]  # fmt: skip


@dataclass(frozen=True)
class Fleet:
    """Devices in this process: their examples by name, their common learner, and their owners' consent
    (`federated.server.store.CONSENTS`): of all devices, or by name, "none" for devices that are not named."""

    learner: Learner
    start: Start
    shards: Mapping[str, Batch]
    consent: str | Mapping[str, str] = "none"

    def agreed(self, device: str) -> str:
        """The consent of a device's owner. Raises FederatedError for an unknown one."""
        found = self.consent if isinstance(self.consent, str) else self.consent.get(device, "none")
        if found not in CONSENTS:
            raise FederatedError(f"{device}: expected consent to be one of {', '.join(CONSENTS)}, got {found!r}")
        return found


def start_of(path: str | os.PathLike[str]) -> tuple[LiteLearner, Start]:
    """A trainable bundle's learner, and the start of a run with it."""
    learner = LiteLearner(path)
    held = bundle.read(path)
    statistics = tuple(held.uses["gradients"].writes.values())
    language = "language" in held.metadata
    return learner, Start(learner.params, statistics, held.digest, signed=not learner.classifies, language=language)


def opened(config: Config) -> tuple[LiteLearner, Start]:
    """`start_of` the configuration's bundle. Raises FederatedError also if the run cannot be made with it."""
    path = config.path(config.model.bundle)
    check(config, bundle.read(path))
    return start_of(path)


def fleet_of(config: Config, devices: int = 0) -> Fleet:
    """The fleet that `model.bundle` and `data.shards` name: its first `devices` by name, or all of them (0).

    Raises FederatedError for files that cannot be read or have too few devices.
    """
    if not config.data.shards:
        raise FederatedError("data.shards: expected the examples of the simulated devices, got none")
    learner, start = opened(config)
    found = shards(config.path(config.data.shards), config.data.labels, config.data.device)
    if devices > len(found):
        raise FederatedError(f"--simulate: expected at most the {len(found)} devices of the shards, got {devices}")
    names = sorted(found)[: devices or len(found)]
    return Fleet(learner, start, {name: found[name] for name in names}, config.sync.consent)


def simulate(
    config: Config,
    fleet: Fleet,
    *,
    resume: bool = False,
    watch: Watch = lambda row: None,
    delay: Callable[[str, int], float] | None = None,
) -> Federation:
    """A whole run in this process, with the same ServerApp and ClientApp as a real one.

    `delay(device, nth)`: seconds of simulated time until a device's nth answer arrives (`LocalGrid`).
    """
    from federated.transport.local import aggregators_here, run_here

    check_algorithm(config.algorithm, second_order=fleet.learner.second_order)
    store = StateStore(config.path(config.state.devices) if config.state.devices else None, durable=False)
    devices = {
        name: Device(name, fleet.learner, data, store, fleet.start.bundle, consent=fleet.agreed(name))
        for name, data in fleet.shards.items()
    }
    ended: list[Federation] = []

    def main(exchange: Exchange) -> None:
        ended.append(run(config, fleet.start, exchange, resume=resume, watch=watch))

    try:
        nodes = aggregators_here(config, fleet.start, devices, delay) if config.hierarchy.aggregators else devices
        run_here(main, nodes, delay)
    finally:
        store.close()
    return ended[0]


def serve(exchange: Exchange, words: Mapping[str, object]) -> Federation | None:
    """The ServerApp's work: the run of the configuration file that `words` (`flwr run --run-config`) name: `config`,
    and `resume` to continue from its checkpoint if there is one, or `aggregator`, the socket of an aggregator. Prints
    each round as a line of JSON. None for a run without a model (`federated.runs`), and for an aggregator.

    Raises FederatedError without a configuration, or for a checkpoint of an earlier run without `resume`.
    """
    path = words.get("config")
    if not isinstance(path, str) or not path:
        raise FederatedError(f"--run-config: expected config='FILE.toml', got {path!r}")
    if (other := of_file(path)) is not None:
        show = partial(print, flush=True)
        other.conduct(exchange, lambda row: show(json.dumps(row)), resume=_resumes(other.checkpoint, words))
        return None
    config = read(path)
    _, start = opened(config)
    if words.get("aggregator"):
        aggregate(config, start, exchange, str(words["aggregator"]))
        return None
    resume = _resumes(config.path(config.state.checkpoint) if config.state.checkpoint else None, words)
    return run(config, start, exchange, resume=resume, watch=lambda row: print(json.dumps(row), flush=True))


def aggregate(config: Config, start: Start, exchange: Exchange, address: str) -> None:
    """Be an aggregator until the root says that the run is over. It is named after its socket, at which the node that
    answers to the server above passes that server's orders (`federated.client.nodes.Uplink`)."""
    if not config.hierarchy.aggregators:
        raise FederatedError("hierarchy.aggregators: expected the run to have aggregators, got none")
    name = Path(address).stem
    keep = Path(address).with_suffix(".devices")
    node = Aggregator(name, config, start, exchange, keep)
    show = partial(print, flush=True)
    channel.serve(address, node.answer, lambda: node.ended, listening=lambda at: show(f"aggregator {name}: {at}"))


def _resumes(keep: Path | None, words: Mapping[str, object]) -> bool:
    """Whether to continue from a checkpoint. Raises FederatedError if there is one and `words` do not say so."""
    there = keep is not None and keep.exists()
    if there and not words.get("resume"):
        raise FederatedError(
            f"state.checkpoint: expected {str(keep)!r} not to exist when a run begins; it belongs to an earlier run: "
            "continue that run with --resume, or move the file"
        )
    return there


def run(
    config: Config, start: Start, exchange: Exchange, *, resume: bool = False, watch: Watch = lambda row: None
) -> Federation:
    """A run, or the rest of one, and its report, which is written by a failed run too."""
    keep = config.path(config.state.checkpoint) if config.state.checkpoint else None
    if resume and keep is None:
        raise FederatedError("--resume: expected state.checkpoint in the configuration to continue from, got none")
    going_on = checkpoint.load(keep, config, start) if resume and keep is not None else None
    federation = going_on or Federation.begin(config, start)
    conducting = conduct_async if config.rounds.mode == "async" else conduct
    try:
        conducting(federation, exchange, keep=keep, watch=watch, after=_after(federation))
    finally:
        if config.report.json:
            text = json.dumps(report(federation), indent=1, allow_nan=False)
            write_atomically(config.path(config.report.json), text.encode(), FederatedError)
    if why := refusal(federation):
        raise FederatedError(
            f"gate: {why}; the model was not written: the checkpoint is kept, train on, or relax [gate] and --resume"
        )
    if config.report.bundle:
        write_model(federation, config.path(config.report.bundle))
    if config.report.adapter:
        adapter_of(federation).save(config.path(config.report.adapter))
    return federation


def rounds_kept(config: Config, start: Start) -> list[dict[str, Any]]:
    """The rounds that the run's checkpoint can return to, as plain data, in order. `current`: whether the present model
    was learned from this round. Raises FederatedError for files that are damaged or of another run."""
    path, federation = _stopped(config, start)
    current = {row["round"] for row in federation.rows if row["counted"]}
    found = []
    for kept in history.listed(path, federation):
        earlier = history.read(kept, federation)
        found.append(
            {
                "round": kept.round,
                "learned": earlier.learned,
                "current": kept.round in current,
                "digest": kept.digest,
                "bytes": kept.size,
                "evaluation": earlier.rows[-1].get("evaluation"),
            }
        )
    return found


def go_back(config: Config, start: Start, number: int) -> Federation:
    """Let the run's checkpoint continue from round `number`. The run must not be going on. Raises FederatedError."""
    path, federation = _stopped(config, start)
    history.return_to(path, federation, number)
    return federation


def _stopped(config: Config, start: Start) -> tuple[Path, Federation]:
    """The checkpoint of a run that is not going on."""
    if not config.state.checkpoint:
        raise FederatedError("state.checkpoint: expected the checkpoint of the run, got none")
    path = config.path(config.state.checkpoint)
    return path, checkpoint.load(path, config, start)


def refusal(federation: Federation) -> str:
    """Why [gate] does not allow the model to be exported; "" if it does."""
    start = federation.first["evaluation"] if federation.first else None
    return objection(federation.config.gate, start, federation.rows)


def _after(federation: Federation) -> After:
    """What follows an evaluation: personal versions are collected, if [sync] names a store."""
    words = federation.config.sync
    if not words.store:
        return lambda exchange, nodes: {}
    if words.only and not federation.config.report.bundle:
        raise FederatedError(
            "sync.only: expected report.bundle together with it, got none; heads fit only the model they were tuned on"
        )
    store = PersonalStore(federation.config.path(words.store), Retention(words.versions, words.days))

    def collect(exchange: Exchange, nodes: Collection[int]) -> dict[str, Any]:
        if why := refusal(federation):  # the versions would belong to a model that must not be published
            return {"sync": {"kept": 0, "declined": 0, "refused": {}, "gate": why, "bytes_down": 0, "bytes_up": 0}}
        return {"sync": sync(federation, exchange, nodes, store, *_published(federation))}

    return collect


def _published(federation: Federation) -> tuple[str, Tree]:
    """The bundle to which this round's personal versions belong: the global model's, newly written, if the report names
    one, so that it and the store always match; otherwise the run's initial one. Its digest and parameters."""
    start, config = federation.start, federation.config
    if not config.report.bundle:
        return start.bundle, start.params
    path = config.path(config.report.bundle)
    write_model(federation, path)
    return bundle.read(path).digest, {**start.params, **federation.model()}


def report(federation: Federation) -> dict[str, Any]:
    """The report of the run, as plain data."""
    given_up = [json.loads(line) for line in federation.left]
    rows = [*given_up, *federation.rows]
    surveys = [survey for row in rows for survey in row.get("evaluation", {}).values()]
    first = [federation.first] if federation.first else []
    return {
        "run": federation.run,
        "algorithm": federation.algorithm.name,
        "bundle": federation.start.bundle,
        "rounds": federation.learned,
        **_fleet(federation),
        "turned_away": dict(sorted(federation.turned_away.items())),
        "turned_away_details": federation.turned_away_details,
        "refused": _summed(row["refused"] for row in rows),
        "limited": _summed(row.get("limited", {}) for row in rows),
        "lost_evaluations": _summed(survey.get("lost", {}) for survey in surveys),
        "diverged_evaluations": sum(len(survey.get("diverged", ())) for survey in surveys),
        "privacy": federation.guarantee(),
        "gate": refusal(federation) if federation.done and federation.config.gate.active else None,
        "epsilon": federation.epsilon(),
        "start": federation.first,
        "bytes_up": sum(row["bytes_up"] for row in [*first, *rows]),
        "bytes_down": sum(row["bytes_down"] for row in [*first, *rows]),
        "seconds": sum(row.get("seconds", 0.0) for row in rows),
        "rows": federation.rows,
        "returns": federation.returns,
        "given_up": given_up,
    }


def _fleet(federation: Federation) -> dict[str, int]:
    """How many devices joined, and how many aggregators, which say how many devices they have."""
    members = federation.members.values()
    if not federation.branching:
        return {"devices": len(members)}
    return {"devices": sum(member.examples for member in members), "aggregators": len(members)}


def _summed(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Counts by reason, added up."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def adapter_of(federation: Federation) -> Adapter:
    """What a run learned beside a language model, as an adapter of the bundle that it began with."""
    held = bundle.read(federation.config.path(federation.config.model.bundle))
    return Adapter.of_state({**held.state, **federation.model()}, held.metadata["language"], held.digest)


def write_model(federation: Federation, path: str | os.PathLike[str]) -> None:
    """The global model as a new bundle whose parent is the old one."""
    old = Path(federation.config.path(federation.config.model.bundle)).read_bytes()
    write_atomically(path, bundle.with_state(old, federation.model()), FederatedError)
