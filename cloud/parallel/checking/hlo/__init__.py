"""Parsing compiled programs: from the text XLA prints to collectives, FLOPs and bytes."""

from cloud.parallel.checking.hlo.program import Branch, Branching, Found, Program, Work, read_program
from cloud.parallel.checking.hlo.text import Module, parse

__all__ = ["Branch", "Branching", "Found", "Module", "Program", "Work", "parse", "read_program"]
