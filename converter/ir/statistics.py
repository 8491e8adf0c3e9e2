"""How a BatchNormalization node's running statistics move in training, where ONNX's definition does not say it.

Written in the node's `metadata_props`, which files keep and other tools ignore.
"""

from __future__ import annotations

__all__ = ["KEY", "STILL", "UNBIASED"]

KEY = "msedge.statistics"
UNBIASED = "unbiased"
"""The running variance moves towards the batch's unbiased variance, sum / (n - 1), as in PyTorch; in ONNX it is
sum / n. Both normalise the batch itself by sum / n."""
STILL = "still"
"""The node normalises by its running statistics in training too, and they do not move."""
