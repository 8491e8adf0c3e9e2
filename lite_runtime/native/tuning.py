"""Which of several ways computes a step: the default rule of a table, or the fastest one measured on this machine.

Bind rules with more than one kernel, tile or algorithm for a shape ask `Choices`. Default rules are tables with the
measurements they are based on (`ops/winograd.py`, `ops/_panels.py`); `msedge bench --tune` measures a model's shapes on
this machine and stores what differs from the rules in the cache folder, one small file per target. A choice changes
times and, if algorithms round differently, last bits; never shapes or bounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from lite_runtime.native import build, trust
from lite_runtime.native.target import host

__all__ = ["Choices", "keep", "kept", "path"]


class Choices:
    """Answers bind rules. `chosen`: option by key; for other keys the default rule, which is the first option, is
    used."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self.chosen = chosen
        self.asked: dict[str, tuple[str, ...]] = {}
        """Every key for which there was a choice, and its options, the default first."""
        self.nodes: dict[str, list[str]] = {}
        """The operators that asked for a choice, by key."""

    def __call__(self, node: str, key: str, options: Sequence[str]) -> str:
        """The option for `key`, for an operator with the name `node` in reports."""
        self.asked[key] = tuple(options)
        self.nodes.setdefault(key, []).append(node)
        found = self.chosen.get(key, options[0])
        return found if found in options else options[0]


def path() -> str:
    """The file with this machine's choices."""
    target = host()
    return os.path.join(build.cache_folder(), "tuning", f"{target.name if target else 'none'}.json")


def kept() -> dict[str, str]:
    """This machine's choices; none if nothing was tuned, the file does not have the format that `keep` writes, or
    others could have written it."""
    try:
        with trust.opened(path()) as file:
            import json  # saves 1 ms of start-up time if nothing was tuned

            found = json.load(file)
    except (OSError, ValueError):
        return {}
    except trust.TrustError as problem:
        trust.warn(problem, "the rules choose, not what was measured here")
        return {}
    whole = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if whole else {}


def keep(choices: Mapping[str, str]) -> None:
    """Write all of this machine's choices atomically.

    Raises MsedgeError if the cache cannot be written, TrustError if others can write to it.
    """
    import json

    trust.write(path(), (json.dumps(dict(sorted(choices.items())), indent=1) + "\n").encode())
