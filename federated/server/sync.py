"""Collecting devices' personal versions, if their owners agreed: see `federated.server.store` for the retention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from federated import tree
from federated.errors import FederatedError
from federated.server.federation import Federation
from federated.server.gathering import Exchange, gather
from federated.server.replies import Expected, Failure, Refused, read_personal
from federated.server.store import PersonalStore
from federated.tree import Tree

__all__ = ["sync"]


def sync(
    federation: Federation, exchange: Exchange, nodes: Collection[int], store: PersonalStore, base: str, params: Tree
) -> dict[str, Any]:
    """Ask devices that took part for their versions; returns how many were stored, and how many owners declined.

    base, params: the digest of the bundle that will be served, and its parameters: the difference from them is stored.
    """
    there = federation.present(nodes) | federation.present(nodes, held_out=True)
    asked = {node: name for name, node in there.items()}
    evaluation = federation.config.evaluation
    only = list(federation.config.sync.only)
    if only and not tree.split(params, only)[0]:
        raise FederatedError(f"sync.only: expected {only} to match some parameters, got none of {', '.join(params)}")
    words = {"steps": evaluation.steps, "batch": evaluation.batch, "only": only}
    refused: Counter[str] = Counter()
    answered: Counter[str] = Counter()

    def ask(links: int | None) -> bytes:
        return federation.task("sync", federation.round, words, links=links)

    def take(node: int, reply: bytes | Failure) -> bytes | None:
        name = asked[node]
        try:
            expected = Expected("personal", name, federation.run, federation.round, federation.attempt)
            consent, own = read_personal(reply, expected)
            if only and (beyond := tree.split(own, only)[1]):
                raise Refused("payload", f"expected parameters that match {only}, got {min(beyond)!r}")
            try:
                store.put(name, base, own, params, round=federation.round, consent=consent)
            except FederatedError as error:
                raise Refused("payload", str(error)) from None
        except Refused as problem:
            if problem.reason == "behind" and federation.lost(name):
                return ask(None)
            refused[problem.reason] += 1
            return None
        answered[consent] += 1
        return None

    store.expire()
    carried = gather(exchange, "query", federation.letters(asked, ask), federation.config.rounds.deadline, take)
    kept = answered["backup"] + answered["serve"]
    return {"kept": kept, "declined": answered["none"], "refused": dict(refused), **carried._asdict()}
