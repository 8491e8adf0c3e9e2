"""The choice itself, with nothing of JAX in it: a problem, and ways to its best options."""

from __future__ import annotations
