"""Pipeline parallelism and recomputation: the forward pass as a line that can be cut, and programs for its segments."""

from __future__ import annotations
