"""The device or the aggregator of a node, read from the node's configuration (`flower-supernode --node-config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from federated.client.demands import Demands
from federated.client.device import Device
from federated.client.identity import pins
from federated.client.lite import LiteLearner
from federated.client.state import StateStore
from federated.data import own
from federated.errors import FederatedError
from federated.learner import NO_MODEL
from federated.server.store import CONSENTS
from federated.transport.channel import Channel
from lite_runtime import bundle

__all__ = ["Uplink", "device_from", "node_from"]

KEYS = {
    "device": "the device's name, the same after a restart",
    "bundle": "the trainable bundle; '' if the device only answers questions and grows trees",
    "data": "its examples: an .npz file, or a folder of them; it uses only its own examples",
    "state": "the file that holds its own state",
}
ARRAYS = {"labels": "labels", "owners": "device"}
"""Keys that may be left out: the names of arrays in `data`, of the labels and of each example's device."""


@dataclass
class Uplink:
    """An aggregator that runs as another process of this machine and listens at a socket."""

    socket: str

    def answer(self, message: bytes) -> bytes:
        """Its answer. Raises FederatedError if it does not listen, or ends before it has answered."""
        with Channel(self.socket) as channel:
            return channel.ask(message)


def node_from(words: Mapping[str, object]) -> Device | Uplink:
    """The device, or with `aggregator` the way to an aggregator. Raises FederatedError as `device_from` does."""
    if "aggregator" not in words:
        return device_from(words)
    if others := sorted(words.keys() - {"aggregator"}):
        raise FederatedError(f"--node-config: expected aggregator alone, got {', '.join(others)} as well")
    return Uplink(str(words["aggregator"]))


def device_from(words: Mapping[str, object]) -> Device:
    """The device. Raises FederatedError, naming the missing key or the wrong file."""
    missing = [key for key in KEYS if not isinstance(words.get(key), str)]
    if missing:
        raise FederatedError(
            f"--node-config: expected {missing[0]}=… ({KEYS[missing[0]]}), got {', '.join(words) or 'nothing'}"
        )
    known = {*KEYS, *ARRAYS, "consent", "peers", *Demands.__struct_fields__}
    if strange := [key for key in words if key not in known]:
        raise FederatedError(f"--node-config: no such key {strange[0]!r}; expected some of {', '.join(sorted(known))}")
    demands = Demands.of(words)
    name, path, data, state = (str(words[key]) for key in KEYS)
    arrays = [str(words.get(key, usual)) for key, usual in ARRAYS.items()]
    found = own(Path(data), name, *arrays, alone=not path)
    consent = str(words.get("consent", "none"))
    if consent not in CONSENTS:
        raise FederatedError(f"--node-config: expected consent to be one of {', '.join(CONSENTS)}, got {consent!r}")
    pinned = pins(str(words["peers"])) if "peers" in words else None
    learner, digest = (LiteLearner(path), bundle.read(path).digest) if path else (NO_MODEL, "")
    store = StateStore(state)
    return Device(name, learner, found, store, digest, consent=consent, demands=demands, peers=pinned)
