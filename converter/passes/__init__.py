"""Rewrites of the IR that preserve its semantics, one pass per file. Each has `run(model) -> int`, which returns the
number of its rewrites."""
