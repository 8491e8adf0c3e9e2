"""Running a federation over whatever carries messages: meet the devices, ask them, wait, learn, keep, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Protocol

from federated import checkpoint
from federated.errors import FederatedError
from federated.federation import Federation, Round
from federated.replies import Failure
from federated.secure_round import STAGES, SecureRound

__all__ = ["After", "Exchange", "conduct", "gather", "meet"]

Watch = Callable[[dict[str, Any]], None]


class Exchange(Protocol):
    """What carries messages. Time is the exchange's own: a simulation's clock need not be the wall's."""

    def nodes(self) -> Collection[int]:
        """Nodes that are there now."""

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Send messages to nodes; a ticket for each that could be sent, and its node."""

    def poll(self, tickets: Collection[str]) -> list[tuple[str, bytes | Failure]]:
        """Replies that have come to these tickets and were not handed out before."""

    def now(self) -> float:
        """Seconds since some moment; never goes back, whatever clocks are set to."""

    def wait(self, seconds: float) -> None:
        """Let time pass, at most this much."""


After = Callable[[Exchange, Collection[int]], dict[str, Any]]


def conduct(
    federation: Federation,
    exchange: Exchange,
    *,
    keep: str | os.PathLike[str] | None = None,
    watch: Watch = lambda row: None,
    after: After = lambda exchange, nodes: {},
) -> None:
    """Rounds until the last. `keep`: where to leave a checkpoint after each; `watch` gets each row; `after` is done
    after rounds that end in an evaluation, and what it gives is in the row too.

    FederatedError where devices do not come, or a round fails as often as `rounds.attempts` allows.
    """
    rounds = federation.config.rounds
    while not federation.done:
        begun = exchange.now()
        nodes = meet(federation, exchange)
        attempt = federation.open(nodes)
        row = (_secure if federation.pipeline.privacy.secure else _plain)(attempt, exchange)
        if row["counted"] and federation.due():
            row["evaluation"] = evaluate(federation, exchange, nodes)
            row.update(after(exchange, nodes))
        row["seconds"] = exchange.now() - begun
        if keep is not None:
            checkpoint.save(keep, federation)
        watch(row)
        if federation.attempt >= rounds.attempts:
            raise FederatedError(
                f"round {attempt.number}: {row['answered']} of {row['asked']} devices answered and {attempt.quorum} "
                f"must, {federation.attempt} times in a row; refused: {row['refused'] or 'none'}"
            )


def _plain(attempt: Round, exchange: Exchange) -> dict[str, Any]:
    """One exchange: the model to the devices, their updates back."""
    federation = attempt.federation
    message = federation.work(attempt.number)
    attempt.bytes_down = len(message) * len(attempt.asked)
    messages = dict.fromkeys(attempt.asked, message)
    gather(exchange, "train", messages, federation.config.rounds.deadline, attempt.take)
    return attempt.close()


def _secure(attempt: Round, exchange: Exchange) -> dict[str, Any]:
    """Four exchanges, each with the round's deadline."""
    secure = SecureRound(attempt)
    for stage in STAGES:
        try:
            messages = secure.messages(stage)
        except FederatedError as error:  # too few are left
            secure.failed = str(error)
            break
        attempt.bytes_down += sum(map(len, messages.values()))
        kind = "train" if stage == "train" else "query"
        deadline = attempt.federation.config.rounds.deadline
        gather(exchange, kind, messages, deadline, partial(secure.take, stage=stage))
    return secure.close()


def evaluate(federation: Federation, exchange: Exchange, nodes: Collection[int]) -> dict[str, Any]:
    """Ask devices how good the model is; a summary for those that train and one for those that never do."""
    found = {}
    for survey in federation.survey(nodes):
        deadline = federation.config.rounds.deadline
        gather(exchange, "evaluate", dict.fromkeys(survey.asked, survey.message), deadline, survey.take)
        found["held_out" if survey.held_out else "training"] = survey.close()
    return found


def meet(federation: Federation, exchange: Exchange) -> Collection[int]:
    """Greet nodes that are new, and wait for `rounds.minimum` devices; the nodes that are there."""
    rounds = federation.config.rounds
    until = exchange.now() + rounds.deadline
    turned_away: set[int] = set()
    while True:
        nodes = exchange.nodes()
        strangers = [node for node in federation.strangers(nodes) if node not in turned_away]
        if strangers:
            take = partial(federation.welcome, nodes=nodes)
            messages = dict.fromkeys(strangers, federation.hello())
            gather(exchange, "query", messages, max(0.0, until - exchange.now()), take)
            turned_away |= set(federation.strangers(nodes))
        if len(federation.present(nodes)) >= rounds.minimum or exchange.now() >= until:
            return nodes
        exchange.wait(1.0)


def gather(
    exchange: Exchange,
    kind: str,
    messages: Mapping[int, bytes],
    deadline: float,
    take: Callable[[int, bytes | Failure], None],
) -> None:
    """Send to all, and take replies until everybody has answered or the deadline has passed."""
    until = exchange.now() + deadline
    open_ = exchange.send(kind, messages)
    while open_:
        for ticket, reply in exchange.poll(open_):
            take(open_.pop(ticket), reply)
        left = until - exchange.now()
        if not open_ or left <= 0:
            return
        exchange.wait(min(left, 0.25))
