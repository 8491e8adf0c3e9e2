"""Operators that share one decision: groups, repeated blocks, parts of a step."""
