"""What a server tells its aggregators: the state of the run that a round or an evaluation needs, and the model.

An aggregator reads the same configuration file as the root. An order holds what follows from the rounds so far, so that
an aggregator that was restarted, or comes in later, sends its devices the same bytes as one that was always there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from federated.client.device import VERSION
from federated.codec import Codec
from federated.errors import FederatedError
from federated.messages import fields
from federated.messages.downlink import Downlink
from federated.messages.packed import pack, unpack
from federated.server.checkpoint import fingerprint
from federated.server.federation import Federation

__all__ = ["Order", "adopt", "order", "read"]

_STATE: Mapping[str, tuple[type, ...]] = {
    "levels": (int,), "config": (str,), "skipped": (int,), "bound": (float, int), "multiplier": (float, int),
    "secret": (str,), "model": (int,), "log": (list,),
}  # fmt: skip
_ROUND: Mapping[str, tuple[type, ...]] = {"run": (str,), "round": (int,), "attempt": (int,)}
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "hello": {"run": (str,), "levels": (int,)},
    "gather": {**_ROUND, **_STATE},
    "sum": {**_ROUND, "allowed": (list,)},
    "survey": {**_ROUND, **_STATE, "most": (int,)},
    "end": {"run": (str,)},
}


@dataclass(frozen=True)
class Order:
    """A message from the server above, with its fields checked."""

    kind: str
    words: Mapping[str, Any]
    body: Mapping[str, Any]

    @property
    def key(self) -> tuple[Any, ...]:
        """What the same order has again if it is repeated."""
        return (self.kind, *(self.words.get(key) for key in _ROUND))


def order(federation: Federation, kind: str, number: int, more: Mapping[str, Any] | None = None) -> bytes:
    """The message about round `number` to all aggregators of a server."""
    words: dict[str, Any] = {"version": VERSION, "kind": kind, "run": federation.run}
    body: dict[str, Any] = {}
    if "round" in _FIELDS[kind]:
        words |= {"round": number, "attempt": federation.attempt}
    if "levels" in _FIELDS[kind]:
        words["levels"] = len(federation.config.hierarchy.aggregators) - 1
    if "model" in _FIELDS[kind]:
        link = federation.link
        words |= {
            "config": fingerprint(federation.config),
            "skipped": federation.skipped,
            "bound": federation.bound,
            "multiplier": federation.multiplier,
            "secret": federation.secret if federation.transforms.privacy.sampling == "poisson" else "",
            "model": link.version,
            "log": [len(each) for each in link.log],
        }
        body = {"model": link.tree, "log": np.frombuffer(b"".join(link.log), np.uint8)}
    return pack({**words, **(more or {})}, body)


def read(message: bytes) -> Order:
    """Raises FederatedError for anything that is not an order."""
    words, body = unpack(message)
    kind = str(words.get("kind"))
    if words.get("version") != VERSION or kind not in _FIELDS:
        raise FederatedError(
            f"aggregator: expected one of {', '.join(_FIELDS)} in messages of version {VERSION}, got "
            f"{kind[:80]!r} in version {str(words.get('version'))[:20]}; a server has aggregators only if its "
            "hierarchy.aggregators says so"
        )
    fields.check(kind, words, _FIELDS[kind])
    return Order(kind, words, body)


def adopt(federation: Federation, told: Order, done: int) -> None:
    """Continue as the server above says, after `done` rounds. Raises FederatedError for another configuration."""
    words, body = told.words, told.body
    if words["config"] != fingerprint(federation.config):
        raise FederatedError(
            "aggregator: expected the configuration of the server above it, got another; copy its file here (paths in "
            "[state] and [report] may differ)"
        )
    log, model = body.get("log"), body.get("model")
    ends = list(accumulate(words["log"], initial=0))
    if not isinstance(log, np.ndarray) or not isinstance(model, dict) or ends[-1] != len(log):
        raise FederatedError(f"{told.kind}: expected a model, and differences of {ends[-1]} bytes")
    data = log.tobytes()
    links = tuple(data[begin:end] for begin, end in pairwise(ends))
    codec, seed = Codec.parse(federation.config.codec.down), federation.config.rounds.seed
    federation.link = Downlink(codec, seed, model, words["model"], links)
    federation.run, federation.round, federation.attempt = words["run"], done, words["attempt"]
    federation.skipped, federation.bound = words["skipped"], float(words["bound"])
    federation.multiplier = float(words["multiplier"])
    federation.secret = words["secret"]
