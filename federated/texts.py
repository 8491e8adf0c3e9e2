"""Texts as the examples of language models: tokens in windows of one length, and the token after each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from federated.data import size
from federated.errors import FederatedError
from federated.learner import Batch
from lite_runtime._files import write_atomically

if TYPE_CHECKING:
    from lite_runtime.language import Tokenizer

__all__ = ["IGNORED", "of_texts", "windows", "write_shards"]

INPUT = "input_ids"
IGNORED = -1
"""The label of a place that does not count: what fills the last window."""


def windows(tokens: Sequence[int], length: int) -> Batch:
    """A text's tokens as windows one after the other: `input_ids` int32 [n, length], and labels int64 of the same
    shape, the token after each; the last window is filled with tokens 0, whose labels are IGNORED. Raises
    FederatedError for fewer than two tokens."""
    if len(tokens) < 2 or length < 1:
        raise FederatedError(f"expected at least 2 tokens and 1 in a window, got {len(tokens)} and {length}")
    count = -(-(len(tokens) - 1) // length)
    ids, labels = np.zeros(count * length, np.int32), np.full(count * length, IGNORED, np.int64)
    ids[: len(tokens) - 1], labels[: len(tokens) - 1] = tokens[:-1], tokens[1:]
    return Batch({INPUT: ids.reshape(count, length)}, labels.reshape(count, length))


def of_texts(tokenizer: Tokenizer, texts: Mapping[str, str], length: int, least: int = 2) -> dict[str, Batch]:
    """The examples of each device from its text; devices with fewer than `least` tokens are left out."""
    encoded = {name: tokenizer.encode(text) for name, text in sorted(texts.items())}
    return {name: windows(ids, length) for name, ids in encoded.items() if len(ids) >= max(2, least)}


def write_shards(path: Path, fleet: Mapping[str, Batch]) -> None:
    """An .npz that `data.shards` may name. Written completely or not at all. Raises FederatedError for a fleet
    without devices, and for a path that cannot be written."""
    if not fleet:
        raise FederatedError(f"{path}: expected the texts of at least one device, got none that is long enough")
    names = np.repeat(np.array(list(fleet)), [size(data) for data in fleet.values()])
    ids, labels = (
        np.concatenate(parts)
        for parts in zip(*((data.inputs[INPUT], data.labels) for data in fleet.values()), strict=True)
    )
    made = BytesIO()
    np.savez_compressed(made, input_ids=ids, labels=labels, device=names)
    write_atomically(path, made.getvalue(), FederatedError)
