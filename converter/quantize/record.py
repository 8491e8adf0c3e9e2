"""The record of a quantisation as JSON values: parameters, the result for each node with its reason, and findings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

__all__ = ["Finding", "NodeStatus", "Record", "Status", "TensorParams"]

Status = Literal["integer", "weights", "dynamic", "float"]
Kind = Literal["saturation", "dead channels", "constant"]


@dataclass(frozen=True)
class Finding:
    """Something the user should know; conversion continues."""

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
    """One number, or one per channel (or block)."""
    zero_point: list[int]
    axis: int | None = None
    block_size: int = 0
    minimum: float | None = None
    """The observed range, for activations."""
    maximum: float | None = None
    saturated: float = 0.0
    """Share of observed values outside the range."""


@dataclass(frozen=True)
class NodeStatus:
    """The precision of a node: `integer`, float arithmetic with integer `weights`, `dynamic`, or `float`."""

    name: str
    op: str
    status: Status
    reason: str = ""
    """Why it is not an integer node."""


@dataclass
class Record:
    """The record of one quantisation."""

    mode: str
    options: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    digest: str = ""
    """The digest of the calibration rows, independent of their order; "" without data."""
    tensors: dict[str, TensorParams] = field(default_factory=dict)
    nodes: list[NodeStatus] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    histograms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tensor -> {"low", "high", "counts"}: the observed values of each quantised activation."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Counts by step: layers equalised, biases corrected."""

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers."""
        return asdict(self)
