"""Files in, answers out: what a bundle declares around its model.

Pipeline.of(bundle.metadata, ports)     the pipeline of a signature, None where there is none
.ports                                  what clients see
.before(inputs) .after(outputs)         pure, for a thread
"""

from __future__ import annotations

from edge.gateway.pipelines.pipeline import Pipeline

__all__ = ["Pipeline"]
