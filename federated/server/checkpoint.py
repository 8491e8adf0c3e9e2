"""A federation's checkpoint, from which a restarted server continues: one file, replaced atomically after each round.

It contains the algorithm's state, the round, the registry of devices and the report's rows. No random generator is
stored: all randomness follows from the seed and the round's number.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from federated.codec import Codec
from federated.config import Config
from federated.errors import FederatedError
from federated.messages.downlink import Downlink, follows
from federated.messages.packed import pack, unpack
from federated.privacy.accountant import Accountant, Spent
from federated.server.federation import Federation, Member, Start
from lite_runtime._files import write_atomically

__all__ = ["load", "save"]

VERSION = 3
_FREE = ("gate", "history", "report", "state", "sync")
_MAY_CHANGE = {"rounds": ("count", "deadline", "attempts", "minimum", "quorum"), "evaluation": ("every",),
               "hierarchy": ("quorum", "deadline")}  # fmt: skip
"""What a resumed run may change: whole sections, and keys of others."""


def save(path: str | os.PathLike[str], federation: Federation) -> None:
    """Replace the file. If the process is killed meanwhile, the old or the new file is left."""
    meta = {
        "version": VERSION,
        "run": federation.run,
        "secret": federation.secret,
        "round": federation.round,
        "attempt": federation.attempt,
        "skipped": federation.skipped,
        "begun": federation.begun,
        "bundle": federation.start.bundle,
        "config": fingerprint(federation.config),
        "members": {name: asdict(member) for name, member in federation.members.items()},
        "turned_away": federation.turned_away,
        "turned_away_details": federation.turned_away_details,
        "first": federation.first,
        "spent": federation.account.spent,
        "bound": federation.bound,
        "model": federation.link.version,
        "returns": federation.returns,
        "given_up": federation.given_up,
        "log": [len(link) for link in federation.link.log],
    }
    body = {"state": federation.state, "rows": np.frombuffer(federation.told(), np.uint8)}
    if federation.left:
        body["left"] = np.frombuffer(b"\n".join(federation.left), np.uint8)
    if follows(federation.link.codec):
        body["link"] = {"tree": federation.link.tree, "log": np.frombuffer(b"".join(federation.link.log), np.uint8)}
    write_atomically(path, pack(meta, body), FederatedError)


def load(path: str | os.PathLike[str], config: Config, start: Start) -> Federation:
    """The federation as saved. Raises FederatedError for a damaged file, or one of a run with another configuration."""
    shown = os.fspath(path)
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise FederatedError(
            f"cannot read checkpoint {shown!r}: {error.strerror}; run without --resume to start a new run"
        ) from error
    meta, body = unpack(data, f"checkpoint {shown!r}", most=len(data))  # its rows and members have no limit
    for key, wanted in (("version", VERSION), ("bundle", start.bundle), ("config", fingerprint(config))):
        if meta.get(key) != wanted:
            raise FederatedError(
                f"checkpoint {shown!r}: its {key} is not this run's; undo the change, or run without "
                "--resume to start a new run"
            )
    try:
        federation = Federation(
            config,
            start,
            body["state"],
            _link(config, meta, body),
            run=str(meta["run"]),
            secret=str(meta["secret"]),
            round=int(meta["round"]),
            attempt=int(meta["attempt"]),
            skipped=int(meta.get("skipped", 0)),
            begun=int(meta.get("begun", 0)),
            members={name: Member(**member) for name, member in meta["members"].items()},
            rows=[json.loads(line) for line in body["rows"].tobytes().splitlines()],
            first=meta["first"],
            turned_away=Counter(meta["turned_away"]),
            turned_away_details=[str(line) for line in meta["turned_away_details"]],
            account=Accountant(tuple(Spent(*each) for each in meta["spent"])),
            bound=float(meta["bound"]),
            returns=[{key: int(each[key]) for key in ("after", "to")} for each in meta.get("returns", ())],
            given_up=int(meta.get("given_up", 0)),
            left=body["left"].tobytes().splitlines() if "left" in body else [],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FederatedError(f"checkpoint {shown!r}: expected a run's state, got {error!r}; start a new run") from error
    if federation.begun > federation.round:
        federation.skip()  # devices may have sent masked updates, and the server may have seen their sum
    return federation


def _link(config: Config, meta: Mapping[str, Any], body: Mapping[str, Any]) -> Downlink:
    """The downlink: as saved if devices have that model, or computed from the state."""
    codec, seed = Codec.parse(config.codec.down), config.rounds.seed
    version = int(meta.get("model", int(meta["round"]) - int(meta.get("skipped", 0))))
    if not follows(codec):
        return Downlink(codec, seed, config.algorithm.broadcast(body["state"]), version)
    log, ends = body["link"]["log"].tobytes(), list(accumulate(meta["log"], initial=0))
    links = tuple(log[begin:end] for begin, end in pairwise(ends))
    return Downlink(codec, seed, body["link"]["tree"], version, links)


def fingerprint(config: Config) -> str:
    """A digest of everything that a resumed run must have in common with the original."""
    free = dict(_MAY_CHANGE)
    # the number of rounds determines how much noise each needs, or how a rate falls
    if config.transforms.privacy.epsilon or config.schedule.open_ended:
        free["rounds"] = tuple(key for key in free["rounds"] if key != "count")
    kept = {
        name: {key: value for key, value in section.items() if key not in free.get(name, ())}
        for name, section in config.source.items()
        if name not in _FREE
    }
    said = {name: section for name, section in kept.items() if section}
    return sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

