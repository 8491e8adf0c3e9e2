"""Semantics-preserving rewrites of the IR, one pass a file. Each has `run(model) -> int`, the number of its
rewrites."""
