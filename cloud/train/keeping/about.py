"""A checkpoint's description: how far its run is, and which arrays it contains, so that a mismatch is noticed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from cloud.errors import CheckpointError
from cloud.train.keeping.manifest import read_json
from cloud.train.keeping.rewind import Place
from cloud.train.stepping.step import TrainState

__all__ = ["ABOUT", "About", "alike", "as_about", "filled", "named", "said_by", "score_of", "written"]

ABOUT = "about.json"

_VERSION = 1
_PACKAGES = ("jax", "jaxlib", "numpy", "optax", "orbax-checkpoint")


class About(NamedTuple):
    """A checkpoint's description of its run: its position, its seed, what its batches are made from, the score it may
    be kept for (larger is better), other facts such as configuration and plan."""

    place: Place
    seed: int
    data: Mapping[str, Any]
    score: float | None = None
    facts: Mapping[str, Any] = {}


def written(about: About, arrays: Mapping[str, Any]) -> bytes:
    """The contents of `about.json`. Raises CheckpointError for facts that JSON cannot hold."""
    said = about._asdict() | {
        "version": _VERSION,
        "place": about.place._asdict(),
        "arrays": [[name, list(a.shape), str(a.dtype)] for name, a in arrays.items()],
        "versions": _versions(),
        "written": time.time(),
    }
    try:
        return json.dumps(said, sort_keys=True, indent=1).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"expected metadata that JSON can hold: {error}") from error


def named(state: TrainState) -> list[tuple[str, Any]]:
    """Every array by its path in the state: "params.w"."""
    paths = jax.tree_util.tree_leaves_with_path(state)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in paths]


def filled(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Arrays by number, because names may contain characters that file names must not; without empty arrays, which
    orbax does not write."""
    return {str(i): array for i, array in enumerate(arrays.values()) if array.size}


def alike(said: Iterable[Any], arrays: Mapping[str, Any], path: Path) -> None:
    """Raises CheckpointError, which lists the differences, if the saved arrays are not those of the trainer."""
    saved = {name: (tuple(shape), dtype) for name, shape, dtype in said}
    here = {name: (a.shape, str(a.dtype)) for name, a in arrays.items()}
    wrong = [f"{name!r} is not in the checkpoint" for name in here.keys() - saved.keys()]
    wrong += [f"{name!r} is not in the trainer" for name in saved.keys() - here.keys()]
    both = [name for name in here if name in saved and here[name] != saved[name]]
    wrong += [f"{name!r} is {_shown(saved[name])} in it, {_shown(here[name])} in the trainer" for name in both]
    if not wrong and list(saved) != list(here):
        wrong = ["its arrays are in another order"]
    if wrong:
        more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise CheckpointError(
            f"checkpoint {path.name} belongs to another model or optimiser: {'; '.join(sorted(wrong)[:5])}{more}. Use "
            "the same model and settings, or start without resuming"
        )


def _shown(array: tuple[tuple[int, ...], str]) -> str:
    return f"{array[1]}{list(array[0])}"


def said_by(path: Path) -> tuple[dict[str, Any], str]:
    """`about.json`, and what is wrong with it ("" if nothing)."""
    try:
        said = read_json(path / ABOUT)
    except CheckpointError as error:
        return {}, str(error)
    if said.get("version") != _VERSION:
        return {}, f"it has version {said.get('version')!r}; expected version {_VERSION}"
    return said, ""


def as_about(said: Mapping[str, Any]) -> About:
    """The inverse of `written`."""
    return About(Place(**said["place"]), *(said[name] for name in About._fields[1:]))


def score_of(path: Path) -> float:
    """The checkpoint's score; -inf without one."""
    score = said_by(path)[0].get("score")
    return float(score) if isinstance(score, int | float) else -float("inf")


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
