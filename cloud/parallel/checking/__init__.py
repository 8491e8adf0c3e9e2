"""Plans held against compiled programs, by the compilers of CPUs and GPUs."""

from __future__ import annotations
