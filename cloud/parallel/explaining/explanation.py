"""The parts of an explanation of a plan, as plain data: tensors, operators, collectives and rival plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["Explanation", "Moving", "Rival", "Tensor", "Worker"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """`times` similar inputs of the step. `split`: as `[4096/m0, 1024]`; bytes of all of them, whole and per device."""

    name: str
    kind: str
    dtype: str
    split: str
    times: int
    bytes: int
    local_bytes: int


@dataclass(frozen=True, slots=True)
class Worker:
    """`times` similar operators. `split`: of the result; `share`: of all FLOPs; `idle`: the share of the devices' time
    spent on computing the same as others."""

    name: str
    split: str
    times: int
    share: float
    idle: float


@dataclass(frozen=True, slots=True)
class Moving:
    """`times` similar collectives of a step: `bytes` of results on a device and seconds, summed. `hidden`: seconds
    that computing hides. `why`: for example "partial sums of gradient of params.*.w"."""

    kind: str
    axes: str
    times: int
    bytes: int
    seconds: float
    hidden: float
    why: str


@dataclass(frozen=True, slots=True)
class Rival:
    """Another plan, or why there is none. `loses`: where it spends more time than the plan."""

    name: str
    strategy: str
    step_seconds: float | None
    peak_bytes: int | None
    loses: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one plan; seconds and bytes of a step on one device. `memory`: bytes by kind at the fullest
    moment (`peak_at`). `unsearched`: the share of FLOPs inside operators that were planned whole (`notes`)."""

    name: str
    strategy: str
    mesh: str
    topology: str
    limit: float
    step_seconds: float
    compute_seconds: float
    collective_seconds: float
    exposed_seconds: float
    gap: float
    peak_bytes: int
    peak_at: str
    memory: Mapping[str, int]
    tensors: tuple[Tensor, ...]
    workers: tuple[Worker, ...]
    moves: tuple[Moving, ...]
    rivals: tuple[Rival, ...]
    unsearched: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)
