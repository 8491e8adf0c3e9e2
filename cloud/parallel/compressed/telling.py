"""The price of compressed gradients in words."""

from __future__ import annotations

from typing import Any

from cloud.parallel.compressed.price import Price
from cloud.parallel.explaining.words import duration, link_text
from cloud.parallel.topology import Topology

__all__ = ["as_data", "told"]


def told(price: Price, topology: Topology) -> str:
    """One sentence."""
    level, before, after = link_text(price.mesh.levels[0], topology), price.exact, price.slow
    return (
        f"gradients across {level}: {price.how} takes {duration(after[0])} a step instead of {duration(before[0])} "
        f"({price.fewer:.1f} times fewer bytes); data parallelism {duration(price.estimate.step_seconds)} instead of "
        f"{duration(price.plan.estimate.step_seconds)}"
    )


def as_data(price: Price) -> dict[str, Any]:
    """Plain data for JSON: seconds, and bytes that a device sends across the slow level."""
    return {
        "compress": str(price.how), "groups": price.mesh.sizes[0], "step_seconds": price.estimate.step_seconds,
        "exact_step_seconds": price.plan.estimate.step_seconds, "gradient_seconds": price.slow[0],
        "exact_gradient_seconds": price.exact[0], "bytes": price.slow[1], "exact_bytes": price.exact[1],
        "peak_bytes": price.estimate.peak_bytes,
    }  # fmt: skip
