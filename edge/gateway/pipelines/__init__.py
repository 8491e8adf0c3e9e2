"""Processing: the pre- and post-processing that a bundle declares around its model.

Pipeline.of(bundle.metadata, ports)     the processing of a signature, None if there is none
.ports                                  what clients see
.before(inputs) .after(outputs)         pure, for a thread
"""

from __future__ import annotations

from edge.gateway.pipelines.pipeline import Pipeline

__all__ = ["Pipeline"]
