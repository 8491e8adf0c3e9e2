"""A party's file of a vertical run. Both parties have one: the active party, which has labels, and the passive one.

A key that is not set has the default given here; a key that does not exist, or that a party does not use, is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from federated.errors import FederatedError
from federated.tables import Count, NotNegative, Positive, Reader, Seed, Share, Table

__all__ = ["Learning", "Party", "Protect", "parse", "read"]

_READ = Reader(FederatedError, "docs/federated-vertical.md has an example")
Role = Literal["active", "passive"]


class _Section(Table, frozen=True):
    """A section of the file."""

    reader: ClassVar[Reader] = _READ


class Vertical(_Section, frozen=True):
    """Which party this is, and its part of the model: a bundle made with `msedge convert`, the passive party's with
    `--loss inner_product`, the active party's with `--slopes` for the input that is the other part's result."""

    role: Role
    bundle: str


class Rows(_Section, frozen=True):
    """`file`: an .npz with arrays by input name and `id`, the identifier of each row (texts or whole numbers); at the
    active party also `labels`. `test`: the share of the common rows that is not trained on."""

    file: str
    id: str = "id"
    labels: str = "labels"
    test: Share = 0.25


class Match(_Section, frozen=True):
    """`least` and `most`: how many identifiers the other party must have; it learns which of them are common."""

    least: Count = 1
    most: Count = 10_000_000


class Learning(_Section, frozen=True):
    """Steps of SGD over the common rows. The active party decides on `epochs`, `batch` and `seed` for both; `rate` and
    `momentum` are each party's own."""

    epochs: Count = 5
    batch: Count = 64
    rate: Positive = 0.1
    momentum: Share = 0.0
    seed: Seed = 0
    most_epochs: Count = 1000
    """At the passive party: more are refused."""


class Protect(_Section, frozen=True):
    """What is done to what leaves this party: rows of results (passive), or rows of the loss's gradient (active)."""

    clip: NotNegative = 0.0
    """The norm to which each row is scaled down; a row of the gradient is that of one example's own loss; 0: none."""
    multiplier: NotNegative = 0.0
    """Gaussian noise on each element, of this multiple of the most that a row can change, 2 clip."""
    delta: Annotated[float, Meta(gt=0, lt=1, description="a number in (0, 1), less than 1 / rows")] = 1e-6
    most_epsilon: NotNegative = 0.0
    """With noise: what this party sends about one row may cost at most this much; 0: no limit."""
    labels_epsilon: NotNegative = 0.0
    """At the active party: labels are randomised once, before anything is computed from them; 0: not."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _READ.need(not self.multiplier or self.clip > 0, "protect.clip", "a norm with protect.multiplier", self.clip)
        _READ.need(not self.most_epsilon or self.multiplier > 0, "protect.multiplier", "noise with most_epsilon", 0)


class Kept(_Section, frozen=True):
    """`checkpoint`: the file from which a run continues, written every `every` steps; "" for none."""

    checkpoint: str = ""
    every: Count = 100


class Told(_Section, frozen=True):
    """Files written at the end: the report (active party), this party's part of the model; "" for none."""

    json: str = ""
    bundle: str = ""


class _File(_Section, frozen=True):
    vertical: Vertical
    data: Rows
    match: Match = Match()
    learning: Learning = Learning()
    protect: Protect = Protect()
    state: Kept = Kept()
    report: Told = Told()


class Party(_File, frozen=True, kw_only=True):
    """A party. `folder`: the base of relative paths."""

    folder: Path = Path()
    source: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The parsed file."""

    def __post_init__(self) -> None:
        """Does nothing: its parts were checked when they were created."""

    @property
    def role(self) -> Role:
        """Which party this is."""
        return self.vertical.role

    def path(self, text: str) -> Path:
        """A path in the file, resolved."""
        return self.folder / text


def read(path: str | os.PathLike[str]) -> Party:
    """The party that a TOML file describes; paths in it are relative to its folder. Raises FederatedError, naming the
    key."""
    return parse(_READ.file(path), Path(path).resolve().parent)


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Party:
    """The same for a parsed file."""
    file = _READ.read(_File, words)
    idle = _IDLE[file.vertical.role]
    for section, keys in idle.items():
        for key in keys:
            if key in words.get(section, {}):
                raise FederatedError(f"{section}.{key}: has no effect for the {file.vertical.role} party; omit it")
    return Party(**msgspec.structs.asdict(file), folder=folder, source=words)


_IDLE: Mapping[Role, Mapping[str, tuple[str, ...]]] = {
    "active": {"learning": ("most_epochs",)},
    "passive": {
        "data": ("labels", "test"),
        "learning": ("epochs", "batch", "seed"),
        "protect": ("labels_epsilon",),
        "state": ("every",),
        "report": ("json",),
    },
}
"""Keys that a party does not use, by section."""
