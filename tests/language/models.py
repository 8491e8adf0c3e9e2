"""Real models and tokenizers, which `make models` puts into the user's cache; tests that need one skip without it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from benchmarks.zoo.fetch import is_there
from benchmarks.zoo.listing import entries, file_of
from lite_runtime.native.build import cache_folder

__all__ = ["model"]

LIST = Path(__file__).with_name("models.json")


@cache
def model(name: str) -> Path:
    """The file of a row of models.json, its digest checked once a process."""
    (entry,) = [row for row in entries(LIST) if row.name == name]
    folder = Path(cache_folder()) / "models"
    if not is_there(entry, folder):
        pytest.skip(f"no {name} in {folder}: make models")
    return file_of(entry, folder)
