"""The bundles of the integer models, and the digests of their results: recorded, and of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.emulated.working import report_here
from tests.integers.models import MODELS, bundle

__all__ = ["DIGESTS", "digest_of", "found_here", "recorded", "write_bundles"]

DIGESTS = Path(__file__).with_name("digests.txt")


def write_bundles(folder: Path) -> int:
    """Write NAME.mslite of every model; returns how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        (folder / f"{name}.mslite").write_bytes(bundle(name))
    return len(MODELS)


def recorded() -> dict[str, str]:
    """By model."""
    return dict(line.split() for line in DIGESTS.read_text().splitlines())


def digest_of(one: Mapping[str, Any]) -> str:
    """Of a model's row in a report of `tests.emulated.device`; each of these models has one output."""
    (digest,) = one["sha256"].values()
    return str(digest)


def found_here(folder: Path, target: str | None = None) -> dict[str, str]:
    """What this machine computes, by default for its best target."""
    found = report_here(target, bundles=folder)
    assert not found["failed"], found["failed"]
    assert target in (None, found["target"])
    return {name: digest_of(one) for name, one in found["ran"].items()}
