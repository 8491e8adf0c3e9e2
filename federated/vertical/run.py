"""Whole vertical runs: both parties in this process, or each in its own, connected directly."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from federated.errors import FederatedError
from federated.transport.channel import Channel, Tls, serve
from federated.vertical.active import Active
from federated.vertical.config import Party
from federated.vertical.passive import Passive
from lite_runtime._files import write_atomically

__all__ = ["conduct", "connect", "listen", "simulate"]

Watch = Callable[[dict[str, Any]], None]


def conduct(
    party: Party, send: Callable[[bytes], bytes], watch: Watch = lambda row: None, *, resume: bool = False
) -> dict[str, Any]:
    """The whole run at the active party, or the rest of one; returns the report, which is also written to
    `report.json`. `watch` is called after each epoch. Raises FederatedError."""
    checkpoint = party.path(party.state.checkpoint) if party.state.checkpoint else None
    if not resume and checkpoint is not None and checkpoint.exists():
        raise FederatedError(
            f"state.checkpoint: expected {str(checkpoint)!r} not to exist when a run begins; it belongs to an earlier "
            "run: continue that run with --resume, or move the file"
        )
    active = Active(party, send)
    if resume:
        active.resume()
    else:
        active.begin()
    active.train(watch)
    report = active.end()
    if party.report.json:
        text = json.dumps(report, indent=1, allow_nan=False)
        write_atomically(party.path(party.report.json), text.encode(), FederatedError)
    return report


def simulate(active: Party, passive: Party, watch: Watch = lambda row: None, *, resume: bool = False) -> dict[str, Any]:
    """Both parties in this process, with the messages of a real run."""
    return conduct(active, Passive(passive).answer, watch, resume=resume)


def connect(
    party: Party, address: str, tls: Tls | None = None, watch: Watch = lambda row: None, *, resume: bool = False
) -> dict[str, Any]:
    """The active party's process; the passive one listens at the address."""
    with Channel(address, tls) as channel:
        return conduct(party, channel.ask, watch, resume=resume)


def listen(
    party: Party, address: str, tls: Tls | None = None, listening: Callable[[str], None] = lambda address: None
) -> None:
    """The passive party's process: it answers until the active party says that the run is over."""
    passive = Passive(party)
    serve(address, passive.answer, lambda: passive.ended, tls, listening=listening)
