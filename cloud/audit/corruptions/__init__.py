"""What happens to inputs in use: noise, weather, wear. A kind of input a file, each corruption a row with five levels.

Dan Hendrycks and Thomas Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations",
ICLR 2019, arXiv 1903.12261: five severities of each, measured by the mean error over all of them.
"""

from __future__ import annotations

from cloud.audit.corruptions.rows import Corruption
from cloud.audit.corruptions.runs import corrupted, corruptions_of

__all__ = ["Corruption", "corrupted", "corruptions_of"]
