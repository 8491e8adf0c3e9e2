"""Carries an adapter of a language model over to a new base: the new one learns the old one's answers.

The candidates are those of `carrying`, of which the fourth one is fitted to what the old base with the adapter finds
most probable in the device's kept texts (`Learning.taught_by`; Kim & Rush, 2016). That one needs no equal shapes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge.agent.personal.carrying import Report, Score, plain
from lite_runtime.errors import InputError
from lite_runtime.language import Adapter, LanguageModel
from lite_runtime.learning.texts import Example, Learning, examples_of

__all__ = ["carried_adapter", "refitted"]

_ENOUGH = 8
"""Examples from which half of them teach and the others judge; fewer do both."""
_POSITIONS = 512
"""Tokens whose caches a model has while it is judged."""


def refitted(
    old: LanguageModel, adapter: Adapter, new: LanguageModel, examples: list[Example], epochs: int = 3
) -> Adapter:
    """An adapter of the new model that answers as the old one did with its own. Raises InputError for models with
    different vocabularies, and for a new one that does not learn."""
    learning = Learning(new)
    rows = learning.taught_by(old, adapter, examples)
    for _ in learning.steps(rows, epochs):
        pass
    return learning.adapter()


def carried_adapter(words: Mapping[str, Any]) -> dict[str, Any]:
    """See `carrying.carried_here`; `examples` is a file of texts or conversations (`examples_of`)."""
    every, adapter = examples_of(Path(words["examples"])), Adapter.load(words["state"])
    teach, examples = (every[::2], every[1::2]) if len(every) >= _ENOUGH else (every, every)
    old, new = (LanguageModel.load(words[name], positions=_POSITIONS) for name in ("old", "new"))
    fresh = Learning(new).loss(examples)
    losses, made = {"initial": fresh}, dict[str, Adapter]()
    try:
        moved = Adapter(adapter.arrays, new.digest)
        losses["carried"], made["carried"] = Learning(new, adapter=moved).loss(examples), moved
    except InputError:
        pass  # it has other shapes
    if words["epochs"]:
        made["refitted"] = refitted(old, adapter, new, teach, words["epochs"])
        losses["refitted"] = Learning(new, adapter=made["refitted"]).loss(examples)
    best = min(losses, key=lambda name: losses[name])
    names = tuple(sorted(adapter.arrays))
    if best != "initial":
        os.makedirs(os.path.dirname(words["into"]), exist_ok=True)
        made[best].save(words["into"])
    before = Score(Learning(old, adapter=adapter).loss(examples)) if _learns(old) else None
    return plain(Report(best, names, (), len(examples), before, Score(losses[best]), Score(fresh)))


def _learns(model: LanguageModel) -> bool:
    return "train_step" in model.engine.model.signatures
