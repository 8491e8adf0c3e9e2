"""What quantisation did, in a form JSON holds: parameters, what each node became and why, what looked wrong."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Finding", "NodeStatus", "Record", "Status", "TensorParams"]

Status = Literal["integer", "weights", "dynamic", "float"]
Kind = Literal["saturation", "dead channels", "constant"]


@dataclass(frozen=True)
class Finding:
    """Something the user should know; conversion goes on."""

    kind: Kind
    where: str
    """Name of the tensor, input or node."""
    text: str


@dataclass(frozen=True)
class TensorParams:
    """How one tensor is stored: real = (stored - zero_point) * scale."""

    name: str
    dtype: str
    scale: list[float]
    """One number, or one a channel (or block)."""
    zero_point: list[int]
    axis: int | None = None
    block_size: int = 0
    minimum: float | None = None
    """Observed, for activations."""
    maximum: float | None = None
    saturated: float = 0.0
    """Share of observed values outside the range."""


@dataclass(frozen=True)
class NodeStatus:
    """What a node computes in: `integer` throughout, float over integer `weights`, `dynamic`, or `float`."""

    name: str
    op: str
    status: Status
    reason: str = ""
    """Why it is no integer node."""


@dataclass
class Record:
    """The account of one quantisation."""

    mode: str
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    digest: str = ""
    """Of the calibration rows, whatever their order; "" without data."""
    tensors: dict[str, TensorParams] = field(default_factory=dict)
    nodes: list[NodeStatus] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    histograms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tensor -> {"low", "high", "counts"}: what was observed of each quantised activation."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What single steps add: how many layers were equalised, how many biases corrected."""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)
