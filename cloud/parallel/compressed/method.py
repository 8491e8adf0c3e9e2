"""What is done with gradients that cross a slow level of links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloud.errors import TrainError
from cloud.parallel.plan import Mesh

if TYPE_CHECKING:
    from cloud.parallel.topology import Topology

__all__ = ["AUTO", "METHODS", "Compress"]

METHODS = ("int8", "powersgd")
AUTO = "auto"
"""int8 where the planner expects that it saves time, else exact sums."""

FIRST_BLOCK, FIRST_RANK = 256, 4


@dataclass(frozen=True)
class Compress:
    """`method`: "int8" or "powersgd", or "auto" (int8 where the planner expects that it saves time).

    `block`: int8: numbers that share a scale. `rank`: powersgd: of the product that stands for a matrix. `level`: the
    fastest level of links that counts as slow, by its index in `topology`, 0 being the slowest: devices that only
    faster links connect form a group, inside which gradients are summed exactly. `topology`: of the devices, or the
    name of a preset or file; None: that of the devices present (several processes are a slow level).
    """

    method: str
    block: int = FIRST_BLOCK
    rank: int = FIRST_RANK
    level: int = 0
    topology: Topology | str | None = None

    def __post_init__(self) -> None:
        if self.method not in (*METHODS, AUTO):
            raise TrainError(f"expected compress to be int8, int8:BLOCK, powersgd, powersgd:RANK or auto, got "
                             f"{self.method!r}")  # fmt: skip
        for name, value, least in (("block", self.block, 8), ("rank", self.rank, 1), ("level", self.level, 0)):
            if value < least:
                raise TrainError(f"compress: expected {name} of at least {least}, got {value}")

    @classmethod
    def named(cls, text: str, topology: Topology | str | None = None) -> Compress:
        """From "int8", "int8:256", "powersgd", "powersgd:4" or "auto". Raises TrainError."""
        method, colon, number = text.partition(":")
        if not colon:
            return cls(method, topology=topology)
        if not number.isdecimal() or method not in METHODS:
            raise TrainError(f"expected compress to be int8, int8:BLOCK, powersgd, powersgd:RANK or auto, got {text!r}")
        if method == "int8":
            return cls(method, block=int(number), topology=topology)
        return cls(method, rank=int(number), topology=topology)

    def __str__(self) -> str:
        """As `named` reads it."""
        return {"int8": f"int8:{self.block}", "powersgd": f"powersgd:{self.rank}"}.get(self.method, self.method)

    def mesh(self, topology: Topology) -> Mesh:
        """The groups, and the devices of each, as mesh axes; one axis if each group is one device. Raises TrainError
        if there is only one group."""
        levels = topology.levels
        if self.level >= len(levels):
            raise TrainError(f"compress: expected a level below {len(levels)} of {topology.name}, got {self.level}")
        groups = math.prod(level.size for level in levels[: self.level + 1])
        if groups < 2:
            raise TrainError(f"compress: expected at least two groups of devices on {topology.name}, got {groups}: "
                             "give a topology with a slow level, or train without compress")  # fmt: skip
        fast = topology.size // groups
        return Mesh((groups, fast), (0, self.level + 1)) if fast > 1 else Mesh((groups,), (0,))
