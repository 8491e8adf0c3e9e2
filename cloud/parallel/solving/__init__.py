"""The optimisation problem, independent of JAX, and its solvers."""

from __future__ import annotations
