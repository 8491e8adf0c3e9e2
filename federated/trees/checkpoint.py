"""The state of a run that grows trees, as a file, replaced as a whole after each round."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from federated.errors import FederatedError
from federated.messages.packed import pack, unpack
from federated.privacy.accountant import Accountant
from federated.server.federation import Member
from federated.trees.booster import Booster
from federated.trees.config import TreesRun
from federated.trees.ensemble import Tree, from_arrays, to_arrays
from lite_runtime._files import write_atomically

__all__ = ["load", "save"]

VERSION = 1
_NUMBERS = ("gain", "weight")


def save(path: str | os.PathLike[str], config: TreesRun, booster: Booster) -> None:
    """Write it. Raises FederatedError if that is not possible."""
    panel, trees = booster.panel, booster.trees
    meta = {
        "version": VERSION,
        "words": _words(config),
        "run": panel.run,
        "number": panel.number,
        "account": panel.account.as_data(),
        "members": {name: [one.node, one.examples, one.identity] for name, one in panel.members.items()},
        "carried": panel.carried,
        "rows": panel.rows,
        "history": booster.history,
        "bits": booster.bits,
        "most": booster.most,
        "sizes": [len(tree.feature) for tree in trees],
    }
    body: dict[str, Any] = {"edges": booster.edges, "trees": to_arrays(trees)}
    body |= {name: np.array([each for tree in trees for each in getattr(tree, name)]) for name in _NUMBERS}
    write_atomically(path, pack(meta, body), FederatedError)


def load(path: Path, config: TreesRun, booster: Booster) -> None:
    """Continue from it: set the booster's and its panel's state. Raises FederatedError for a file that is not the
    checkpoint of a run with this configuration; `report`, and what `rounds` says about waiting, may have changed."""
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise FederatedError(f"state.checkpoint: cannot read {str(path)!r}: {problem.strerror}") from problem
    meta, body = unpack(data, f"{path}", most=1 << 30)
    if meta.get("version") != VERSION or meta.get("words") != _words(config):
        raise FederatedError(
            f"{path}: expected the checkpoint of a run with these settings, got another's; restore the settings, or "
            "begin a new run with another state.checkpoint"
        )
    try:
        panel = booster.panel
        booster.trees = _trees(body, meta["sizes"], config)
        booster.edges, booster.bits, booster.most = body["edges"], int(meta["bits"]), int(meta["most"])
        booster.history, panel.rows, panel.carried = list(meta["history"]), list(meta["rows"]), list(meta["carried"])
        panel.run, panel.number = str(meta["run"]), int(meta["number"])
        panel.members = {name: Member(*one) for name, one in meta["members"].items()}
        panel.account = Accountant.from_data(meta["account"])
        if panel.privacy.noise != "none":  # the round during which the run stopped may have published all of its sums
            panel.account = panel.account.charge(panel.multiplier, rounds=config.trees.max_depth)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise FederatedError(f"{path}: expected a checkpoint of trees, got a damaged one: {problem!r}") from problem


def _trees(body: dict[str, Any], sizes: list[int], config: TreesRun) -> list[Tree]:
    words = config.trees
    arrays = from_arrays(body["trees"], words.features, max(1, words.classes))
    made, at = [], 0
    for row, size in enumerate(sizes):
        tree = Tree(int(arrays["target"][row]))
        for name in ("feature", "threshold", "missing_left", "left", "value"):
            setattr(tree, name, arrays[name][row, :size].tolist())
        for name in _NUMBERS:
            setattr(tree, name, body[name][at : at + size].tolist())
        made.append(tree)
        at += size
    return made


def _words(config: TreesRun) -> str:
    """A digest of the settings that must stay."""
    kept = {
        "trees": {**msgspec.structs.asdict(config.trees), "n_estimators": None},
        "privacy": msgspec.structs.asdict(config.privacy),
        "seed": config.rounds.seed,
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
