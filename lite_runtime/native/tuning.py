"""Which of several ways a step is computed: the rule of the table it stands in, or what this machine was found to like.

Bind rules that know more than one kernel, tile or algorithm for a shape ask `Choices`. Rules are tables with the
measurements behind them (`ops/winograd.py`, `ops/_panels.py`); `msedge bench --tune` measures a model's shapes here and
keeps what differs in the cache folder, one small file a target. What is chosen changes times and, where algorithms
round differently, last bits; never shapes or bounds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from lite_runtime.native import build, trust
from lite_runtime.native.target import host

__all__ = ["Choices", "keep", "kept", "path"]


class Choices:
    """Answers bind rules. `chosen`: option by key; what it does not name goes by the rule, which comes first."""

    def __init__(self, chosen: Mapping[str, str]) -> None:
        self.chosen = chosen
        self.asked: dict[str, tuple[str, ...]] = {}
        """Every key there was a choice for, and its options, the rule's own first."""
        self.nodes: dict[str, list[str]] = {}
        """The operators that asked, by key."""

    def __call__(self, node: str, key: str, options: Sequence[str]) -> str:
        """The option for `key`, for an operator that is called `node` in reports."""
        self.asked[key] = tuple(options)
        self.nodes.setdefault(key, []).append(node)
        found = self.chosen.get(key, options[0])
        return found if found in options else options[0]


def path() -> str:
    """Where this machine's choices are kept."""
    target = host()
    return os.path.join(build.cache_folder(), "tuning", f"{target.name if target else 'none'}.json")


def kept() -> dict[str, str]:
    """This machine's choices; none where nothing was tuned, the file is not what `keep` writes, or others could have
    written it."""
    try:
        with trust.opened(path()) as file:
            import json  # 1 ms of a start where nothing was tuned

            found = json.load(file)
    except (OSError, ValueError):
        return {}
    except trust.TrustError as problem:
        trust.warn(problem, "the rules choose, not what was measured here")
        return {}
    whole = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if whole else {}


def keep(choices: Mapping[str, str]) -> None:
    """Write this machine's choices, all of them, so that no reader ever sees half of them.

    Raises MsedgeError where the cache cannot be written, TrustError where others can write to it.
    """
    import json

    trust.write(path(), (json.dumps(dict(sorted(choices.items())), indent=1) + "\n").encode())
