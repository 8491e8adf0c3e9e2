"""An aggregator: a node of the server above it, a server of the devices or aggregators below it.

It answers orders (`federated.hierarchy.orders`), which are bytes, with bytes. An order that is repeated gets the same
answer, so that a root that was resumed may repeat its round.
"""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from msgspec import structs

from federated.client.device import VERSION
from federated.codec import Codec
from federated.config import Config
from federated.errors import FederatedError
from federated.hierarchy import branch
from federated.hierarchy.branch import Branch
from federated.hierarchy.leaf import Leaf
from federated.hierarchy.orders import Order, adopt, read
from federated.messages.downlink import Downlink
from federated.messages.packed import pack, unpack
from federated.server.conduct import meet, survey
from federated.server.federation import Federation, Member, Start
from federated.server.gathering import Exchange
from federated.server.influence import Bounds
from federated.tree import Tree
from lite_runtime._files import write_atomically
from lite_runtime.errors import MsedgeError

__all__ = ["Aggregator"]

REMEMBERED = 4
"""The newest answers that are kept: a round has two orders, and an evaluation follows it."""

Reply: TypeAlias = tuple[dict[str, Any], Tree]


@dataclass
class Aggregator:
    """`config`: the run's file, as the root has it; `exchange`: what is below; `keep`: a file for the registry of
    devices, so that names stay with their nodes when this process is restarted."""

    name: str
    config: Config
    start: Start
    exchange: Exchange
    keep: str | os.PathLike[str] | None = None
    ended: bool = False
    """Whether the root has said that the run is over."""
    _federation: Federation | None = None
    _work: tuple[tuple[Any, ...], Leaf | Branch] | None = None
    _answers: OrderedDict[tuple[Any, ...], bytes] = field(default_factory=OrderedDict)

    def answer(self, message: bytes) -> bytes:
        """The reply. Raises FederatedError only for bytes that are not a message at all."""
        words, _ = unpack(message)
        same = {key: words[key] for key in ("run", "round", "attempt") if key in words}
        meta = {"version": VERSION, "device": self.name} | same
        try:
            told = read(message)
            if told.key in self._answers:
                return self._answers[told.key]
            reply, body = _KINDS[told.kind](self, told)
        except MsedgeError as error:
            return pack(meta | {"kind": "refusal", "why": str(error)[:500]}, {})
        made = pack(meta | reply, body)
        if "round" in same:
            self._answers[told.key] = made
            while len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return made

    def hello(self, told: Order) -> Reply:
        """Greet what is below; says how many devices that are (1 at least)."""
        federation = self._of(told.words["run"], told.words["levels"])
        nodes = meet(federation, self.exchange)
        self._save(federation)
        below = [member for member in federation.members.values() if member.node in nodes]
        devices = sum(member.examples for member in below) if federation.branching else len(below)
        levels = told.words["levels"] + 1
        return {"kind": "hello", "examples": max(1, devices), "bundle": self.start.bundle, "levels": levels}, {}

    def gather(self, told: Order) -> Reply:
        """A round, up to what updates are held to."""
        federation = self._of(told.words["run"], told.words["levels"])
        adopt(federation, told, told.words["round"] - 1)
        nodes = meet(federation, self.exchange)
        work = (Branch if federation.branching else Leaf).open(federation, nodes)
        work.gather(self.exchange)
        self._save(federation)
        measured = work.measured
        if not len(measured):
            work.sum(self.exchange, Bounds())
            return self._partial(work)
        self._work = told.key[1:], work
        return {"kind": "measured", "row": work.result()[1] | {"answered": len(measured)}}, {"measured": measured}

    def sum(self, told: Order) -> Reply:
        """The rest of the round."""
        if self._work is None or self._work[0] != told.key[1:]:
            raise FederatedError(
                "sum: expected a round for which this aggregator has gathered updates; it was restarted"
            )
        (_, work), self._work = self._work, None
        allowed = told.words["allowed"]
        if len(allowed) != len(Bounds()) or not all(each is None or isinstance(each, float | int) for each in allowed):
            raise FederatedError(f"sum: expected {len(Bounds())} bounds, got {str(allowed)[:80]}")
        work.sum(self.exchange, Bounds(*(math.inf if each is None else float(each) for each in allowed)))
        return self._partial(work)

    def _partial(self, work: Leaf | Branch) -> Reply:
        part, row = work.result()
        words, body = part.packed() if part is not None else ({}, {})
        return {"kind": "partial", "counted": part is not None, "row": row, **words}, body

    def survey(self, told: Order) -> Reply:
        """How good the model is for devices below."""
        federation = self._of(told.words["run"], told.words["levels"])
        adopt(federation, told, told.words["round"])
        nodes = meet(federation, self.exchange)
        asked = branch.survey if federation.branching else survey
        found = asked(federation, self.exchange, nodes, told.words["most"])
        kinds = {"held_out" if each.held_out else "training": each.told() for each in found}
        return {"kind": "surveyed", **kinds}, {}

    def end(self, told: Order) -> Reply:
        """The run is over."""
        self.ended = True
        return {"kind": "ended"}, {}

    def _of(self, run: str, levels: int) -> Federation:
        """This server's side of a run, with `levels` of aggregators below it."""
        depth = len(self.config.hierarchy.aggregators)
        if not 0 <= levels < depth:
            raise FederatedError(f"hierarchy.aggregators: expected fewer than {depth} levels below, got {levels}")
        if self._federation is None or self._federation.run != run:
            below = structs.replace(
                self.config.hierarchy, aggregators=self.config.hierarchy.aggregators[depth - levels :]
            )
            config = structs.replace(self.config, hierarchy=below)
            link = Downlink(Codec.parse(config.codec.down), config.rounds.seed, {})
            self._federation = Federation(config, self.start, {}, link, run=run, bound=config.transforms.privacy.clip)
            self._federation.members.update(self._kept(run))
        return self._federation

    def _save(self, federation: Federation) -> None:
        if self.keep is not None:
            members = {name: asdict(member) for name, member in federation.members.items()}
            write_atomically(self.keep, pack({"run": federation.run, "members": members}, {}), FederatedError)

    def _kept(self, run: str) -> dict[str, Member]:
        """The devices of this run that were greeted before this process began."""
        if self.keep is None or not os.path.exists(self.keep):
            return {}
        with open(self.keep, "rb") as file:
            data = file.read()
        words, _ = unpack(data, f"registry {os.fspath(self.keep)!r}", most=len(data))
        if words.get("run") != run:
            return {}
        return {name: Member(**member) for name, member in words["members"].items()}


_KINDS: Mapping[str, Callable[[Aggregator, Order], Reply]] = {
    "hello": Aggregator.hello,
    "gather": Aggregator.gather,
    "sum": Aggregator.sum,
    "survey": Aggregator.survey,
    "end": Aggregator.end,
}
