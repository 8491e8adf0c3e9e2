"""The main loop of a federation, over any transport: greet the devices, ask them, wait, learn, save, report."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from federated.errors import FederatedError
from federated.hierarchy import branch
from federated.hierarchy.branch import Branch
from federated.hierarchy.partial import Partial
from federated.server import checkpoint, history
from federated.server.federation import Federation, Round, Survey
from federated.server.gathering import Exchange, gather
from federated.server.secure_round import SecureRound

__all__ = ["After", "conduct", "finish", "look_first", "meet", "owed", "quoted", "secure_sum", "survey"]

Watch = Callable[[dict[str, Any]], None]


After = Callable[[Exchange, Collection[int]], dict[str, Any]]


def conduct(
    federation: Federation,
    exchange: Exchange,
    *,
    keep: str | os.PathLike[str] | None = None,
    watch: Watch = lambda row: None,
    after: After = lambda exchange, nodes: {},
) -> None:
    """Runs rounds until the last. `keep`: where to save a checkpoint after each; `watch` is called with each row;
    `after` is called after rounds that end in an evaluation, and its result is added to the row.

    Raises FederatedError if devices do not come, or if a round fails as often as `rounds.attempts` allows.
    """
    rounds = federation.config.rounds
    look_first(federation, exchange)
    owed(federation, exchange, keep=keep, watch=watch, after=after)
    failures = 0
    while not federation.done:
        begun = exchange.now()
        nodes = meet(federation, exchange)
        attempt = Branch.open(federation, nodes) if federation.branching else federation.open(nodes)
        _keep(federation, attempt, keep)
        row = _learn(attempt, exchange)
        finish(federation, exchange, nodes, begun, keep=keep, watch=watch, after=after)
        failures = 0 if row["counted"] else failures + 1
        if failures >= rounds.attempts:
            raise FederatedError(
                f"round {attempt.number}: {attempt.outcome(row)}, {failures} times in a row; "
                f"refused: {row['refused'] or 'none'}{quoted(row['details'])}"
            )
    if federation.branching:
        branch.end(federation, exchange)


def _learn(attempt: Round | Branch, exchange: Exchange) -> dict[str, Any]:
    """Do the round; returns the report's row."""
    if isinstance(attempt, Branch):
        return attempt.learn(exchange)
    return _secure(attempt, exchange) if attempt.federation.transforms.privacy.secure else _plain(attempt, exchange)


def _keep(federation: Federation, attempt: Round | Branch, keep: str | os.PathLike[str] | None) -> None:
    """Save what a resumed server must know even if this attempt is lost: a secure round is not asked for again, and
    noise that devices have sent is charged."""
    secure, local = federation.transforms.privacy.secure, federation.transforms.privacy.noise == "local"
    if secure:
        federation.begun = attempt.number
    if (secure or local) and keep is not None:
        checkpoint.save(keep, federation)


def finish(
    federation: Federation,
    exchange: Exchange,
    nodes: Collection[int],
    begun: float,
    *,
    keep: str | os.PathLike[str] | None,
    watch: Watch,
    after: After,
) -> None:
    """What follows a round: save what was learned, evaluate if that is due, report.

    The checkpoint is saved before devices are sent the new model for evaluation: otherwise a server that died in
    between would repeat the round and publish two results of it, while the privacy account counts one.
    """
    row = federation.rows[-1]
    row["seconds"] = exchange.now() - begun
    due = row["counted"] and federation.due() and federation.affords_evaluation()
    if due and federation.charge_evaluation():
        row["epsilon"] = federation.epsilon()
    if keep is not None:
        _save(keep, federation, complete=not due)
    if due:
        row["evaluation"] = evaluate(federation, exchange, nodes, row)
        row.update(after(exchange, nodes))
        row["seconds"] = exchange.now() - begun
        if keep is not None:
            _save(keep, federation, complete=True)
    watch(row)


def _save(keep: str | os.PathLike[str], federation: Federation, *, complete: bool) -> None:
    """The checkpoint, and before it the round itself if its row is complete."""
    if complete:
        history.put(keep, federation)
    checkpoint.save(keep, federation)


def look_first(federation: Federation, exchange: Exchange) -> None:
    """The evaluation of the start's model, if [gate] compares with it."""
    if federation.config.gate.against == "none" or federation.first is not None or federation.round:
        return
    carried = {"bytes_down": 0, "bytes_up": 0}
    federation.charge_evaluation()
    found = evaluate(federation, exchange, meet(federation, exchange), carried)
    federation.first = {"evaluation": found, **carried}


def owed(
    federation: Federation,
    exchange: Exchange,
    *,
    keep: str | os.PathLike[str] | None,
    watch: Watch,
    after: After,
) -> None:
    """For a resumed run: the evaluation during which the server died, or of the round that the run returned to, if it
    is the last."""
    row = federation.rows[-1] if federation.rows else {"counted": False}
    last = row["counted"] and (row["round"] == federation.round or federation.done)
    if last and federation.due() and "evaluation" not in row:
        begun = exchange.now() - row["seconds"]
        finish(federation, exchange, meet(federation, exchange), begun, keep=keep, watch=watch, after=after)


def quoted(details: Sequence[str]) -> str:
    """The last problems, for the end of an error."""
    return "".join(f"; {detail}" for detail in details[-3:])


def _plain(attempt: Round, exchange: Exchange) -> dict[str, Any]:
    """One exchange: the model to the devices, their updates back."""
    federation = attempt.federation
    found = gather(exchange, "train", attempt.messages(), federation.config.rounds.deadline, attempt.take)
    attempt.bytes_down, attempt.bytes_up = found
    return attempt.close()


def _secure(attempt: Round, exchange: Exchange) -> dict[str, Any]:
    """A secure sum, and a step from it."""
    part = secure_sum(attempt, exchange)
    if part is not None:
        attempt.federation.learn(part)
    else:
        attempt.federation.fail()
    return attempt.row(part is not None, part.devices if part else 0, ())


def secure_sum(attempt: Round, exchange: Exchange) -> Partial | None:
    """Four or five exchanges, each with the round's deadline; None if no sum was opened."""
    federation = attempt.federation
    if not attempt.asked:
        return federation.partial([], attempt.there)
    if len(attempt.asked) < 2:
        attempt.details.append("a secure sum needs at least two devices: a sum over one device would be its update")
        return None
    secure = SecureRound(attempt)
    for stage in secure.stages:
        try:
            messages = secure.messages(stage)
        except FederatedError as error:  # too few are left
            secure.failed = str(error)
            break
        kind = "train" if stage == "train" else "query"
        found = gather(exchange, kind, messages, federation.config.rounds.deadline, partial(secure.take, stage=stage))
        attempt.bytes_down += found.bytes_down
        attempt.bytes_up += found.bytes_up
    return secure.opened()


def evaluate(
    federation: Federation, exchange: Exchange, nodes: Collection[int], row: dict[str, Any]
) -> dict[str, Any]:
    """Ask devices how good the model is; returns a summary for those that train and one for the held-out ones. Its
    bytes are added to the round's `row`."""
    asked = branch.survey if federation.branching else survey
    found = {}
    for each in asked(federation, exchange, nodes, federation.config.evaluation.devices):
        row["bytes_down"] += each.bytes_down
        row["bytes_up"] += each.bytes_up
        found["held_out" if each.held_out else "training"] = each.close()
    return found


def survey(federation: Federation, exchange: Exchange, nodes: Collection[int], most: int) -> list[Survey]:
    """Ask at most so many devices of each kind how good the model is."""
    found = federation.survey(nodes, most)
    for each in found:
        carried = gather(exchange, "evaluate", each.messages(), federation.config.rounds.deadline, each.take)
        each.bytes_down, each.bytes_up = carried
    return found


def meet(federation: Federation, exchange: Exchange) -> Collection[int]:
    """Greet new nodes, and wait for `rounds.minimum` devices, or the aggregators; returns the nodes that are present.
    """
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
        if len(federation.present(nodes)) >= federation.awaited or exchange.now() >= until:
            return nodes
        exchange.wait(1.0)
