"""Differences between two versions of a file: what a device downloads in place of the pieces that changed.

`layout` says what a delta contains, `elements` how changed tensors are coded, `coding` is the entropy coder, and
`rebuilding` makes the new file. The hub makes deltas (`cloud.hub.deltas`).
"""

from lite_runtime.updates.delta.rebuilding import rebuild

__all__ = ["rebuild"]
