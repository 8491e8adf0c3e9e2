"""Operators that are decided together: groups, repeated blocks, parts of a step."""
