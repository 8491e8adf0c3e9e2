"""Plans compared with compiled programs, by the compilers for CPUs and GPUs."""

from __future__ import annotations
