"""Where the files of a release come from, as far as they and the records of training runs say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lite_runtime import bundle
from lite_runtime.updates.release import may_name

__all__ = ["FACTS", "origin"]

FACTS = ("source", "parent", "run")
"""What is found out about a file, and added to its name in a lineage."""


def origin(files: Mapping[str, str | os.PathLike[str]], runs: Path | None = None) -> dict[str, str]:
    """By the name of a file and `.source`, `.parent` or `.run`: the digest of the model that it was converted from, the
    digest of the bundle it was made of, the training run that made it.

    runs: the store of runs. Raises BundleError for a file that is no bundle, TrackError for a store that is none.
    """
    found: dict[str, str] = {}
    for name, path in files.items():
        said = bundle.read(os.fspath(path)).provenance
        facts = zip(FACTS, (said.get("source_digest"), said.get("parent"), _run(path, runs)), strict=True)
        found |= {f"{name}.{key}": str(value) for key, value in facts if value and may_name(f"{name}.{key}")}
    return found


def _run(path: str | os.PathLike[str], runs: Path | None) -> str:
    """The id of the training run that a bundle comes from; "" if the store does not know it."""
    if runs is None:
        return ""
    from cloud.track.lineage import lineage
    from cloud.track.store import Store

    with Store(runs) as store:
        made = [link.digest for link in lineage(store, path) if link.kind == "run"]
    return made[-1] if made else ""
