"""Processing: the pre- and post-processing that a bundle declares around its model.

Processing.of(bundle.metadata, ports)   the processing of a signature, None if there is none
.ports                                  what clients see
.before(inputs) .after(outputs)         pure functions that may run in any thread
"""

from __future__ import annotations

from edge.gateway.processing.processing import Processing

__all__ = ["Processing"]
