"""Parsing compiled programs: from the text XLA prints to collectives, FLOPs and bytes."""

from cloud.parallel.checking.hlo.program import Found, Program, Work, read_program
from cloud.parallel.checking.hlo.text import Module, parse

__all__ = ["Found", "Module", "Program", "Work", "parse", "read_program"]
