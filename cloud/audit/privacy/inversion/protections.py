"""One federated round under several protections, and what its messages give to whoever inverts them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from cloud.audit.privacy.inversion.observe import Loss, Observed, observe, observe_mean
from cloud.audit.privacy.inversion.recording import Recorded, record
from cloud.errors import AuditError
from federated.config import Config
from federated.data import shards
from federated.errors import FederatedError
from federated.run import opened
from federated.server.federation import Federation
from lite_runtime.graph import Array

__all__ = ["SEEN", "STANDARD", "Protection", "Target", "stated", "stated_names", "targets"]

DEVICES = 10
"""Of a round whose file does not say how many take part."""
MOST_DEVICES, MOST_EXAMPLES = 30, 64
"""Of a round that is measured; fewer give more away than more would."""
_PRIVACY = ("clip", "by_layer", "adaptive", "count_noise", "noise", "secure", "threshold", "model", "bits")
"""Keys of [privacy] that change what is sent; epsilon becomes a multiplier."""

SEEN = {
    "message": "a device's message", "mean": "the sum of all devices", "published": "the next model"
}  # fmt: skip
"""What of a round is inverted."""

Words = Mapping[str, Mapping[str, Any]]
_FEDSGD: Words = {"algorithm": {"name": "fedavg", "rate": 0.1}, "local": {"steps": 1, "batch": 1}}
_SECURE: Words = {"privacy": {"clip": 1.0, "secure": True}}


class Protection(NamedTuple):
    """Sections of a run's file, and what of its round is inverted (`SEEN`): each device's message, the mean that its
    server has, or the mean that the next model shows. `name`: as in figures."""

    name: str
    title: str
    words: Words = MappingProxyType({})
    seen: str = "message"
    devices: int = DEVICES
    examples: int = 1


STANDARD = (
    Protection("plain", "none"),
    Protection("int8", "codec int8", {"codec": {"up": ["int8"]}}),
    Protection("noise", "clip 1, local noise 0.5",
               {"privacy": {"clip": 1.0, "noise": "local", "multiplier": 0.5}}),
    Protection("secure", f"secure sums, {SEEN['message']}", _SECURE),
    Protection("secure_sum", f"secure sums, {SEEN['mean']}", _SECURE, "mean"),
)  # fmt: skip
"""One step of one example a device, the least that a round can have."""


class Target(NamedTuple):
    """A gradient, and the examples that are to be found in it."""

    observed: Observed
    x: Array
    y: Array


def stated_names(run: Config) -> tuple[str, ...]:
    """The names of `stated`."""
    return ("stated", "stated_model") if run.transforms.privacy.noise == "central" else ("stated",)


def stated(run: Config, rows: int) -> list[Protection]:
    """The protection of a run's own file, with its algorithm and local work: what its server has, and, under central
    noise, what the next model shows. rows: examples that there are for all devices. Raises FederatedError."""
    private = run.transforms.privacy
    privacy = {key: getattr(private, key) for key in _PRIVACY if getattr(private, key) != getattr(type(private)(), key)}
    if private.noise != "none":
        privacy["multiplier"] = Federation.begin(run, opened(run)[1]).multiplier
    devices, examples = _sizes(run)
    devices = max(2, min(devices, MOST_DEVICES, rows))
    examples = max(1, min(examples, MOST_EXAMPLES, rows // devices))
    words = {
        "algorithm": run.source.get("algorithm", {"name": "fedavg"}), "codec": run.source.get("codec", {}),
        "privacy": privacy, "local": {"steps": run.local.steps, "batch": examples},
    }  # fmt: skip
    seen = ["mean" if private.secure else "message", *(["published"] if private.noise == "central" else [])]
    return [
        Protection(name, f"this run's own, {SEEN[what]}", words, what, devices, examples)
        for name, what in zip(stated_names(run), seen, strict=True)
    ]


def _sizes(run: Config) -> tuple[int, int]:
    """Devices of a round, and examples of the one that has fewest, at most a batch."""
    named = run.path(run.data.shards)
    if not run.data.shards or not named.exists():
        return run.rounds.minimum if run.rounds.minimum > 1 else DEVICES, run.local.batch
    found = shards(named, run.data.labels, run.data.device)
    devices = max(run.rounds.minimum, round(run.rounds.fraction * len(found)))
    least = min(len(shard.labels) for shard in found.values())
    return devices, min(run.local.batch, max(1, math.floor(least * (1 - run.data.test))))


def targets(
    source: str | os.PathLike[str], function: Loss, protections: Sequence[Protection], x: Array, y: Array, seed: int
) -> Iterator[tuple[Protection, list[Target] | str]]:
    """Each protection's targets, or why there are none. x, y: examples, dealt to the devices in order. Raises nothing:
    a run that is refused is a finding."""
    rounds: dict[int, Recorded] = {}
    for one in protections:
        try:
            if id(one.words) not in rounds:
                words = {**_FEDSGD, **one.words}
                rounds[id(one.words)] = record(source, _dealt(one, x, y), words, seed=seed)
            yield one, _targets(function, one, rounds[id(one.words)], x, y)
        except (AuditError, FederatedError) as error:
            yield one, str(error)


def _dealt(one: Protection, x: Array, y: Array) -> dict[str, tuple[Array, Array]]:
    parts = (slice(at * one.examples, (at + 1) * one.examples) for at in range(one.devices))
    return {f"device-{at:02d}": (x[part], y[part]) for at, part in enumerate(parts)}


def _targets(function: Loss, one: Protection, found: Recorded, x: Array, y: Array) -> list[Target]:
    if one.seen == "message":
        shares = _dealt(one, x, y)
        return [Target(observe(function, *tap.trained[0]), *shares[name]) for name, tap in found.taps.items()]
    mean = (found.means if one.seen == "mean" else found.published)[0]
    message = next(iter(found.taps.values())).trained[0][0]
    count = one.devices * one.examples
    return [Target(observe_mean(function, message, mean, one.devices), np.asarray(x[:count]), np.asarray(y[:count]))]
