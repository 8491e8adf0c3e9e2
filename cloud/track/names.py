"""Pronounceable names of runs: amber-otter-417."""

from __future__ import annotations

import secrets

__all__ = ["fresh_name"]

_HOW = """amber bold brisk calm clear cold coral crisp dusky early fair fleet gentle gold green hazel ivory jade keen
late light lively lunar mellow mild neat noble pale plain quick quiet rapid rare red rosy ruby sandy sharp silver slow
smart soft solar spry steady still sunny swift tall teal tidy vivid warm white wide wild wise young""".split()
_WHO = """ant bee bison crane crow deer dove duck eagle elk falcon finch fox frog gecko goose gull hare hawk heron ibis
jay kite koala lark lion llama lynx mole moose moth newt okapi orca oryx otter owl panda pike puffin quail raven robin
salmon seal shrew sloth snail stork swan tapir tern tiger toad trout vole whale wolf wren yak zebra""".split()


def fresh_name() -> str:
    """A random name, one of about three million."""
    return f"{secrets.choice(_HOW)}-{secrets.choice(_WHO)}-{secrets.randbelow(900) + 100}"
