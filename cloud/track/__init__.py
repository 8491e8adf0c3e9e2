"""What runs leave behind: settings, curves, files and where each came from, in one SQLite file.

Reading a store imports neither JAX nor ONNX; `cloud.track.tracked.Tracked`, which watches a trainer, does.
"""

from __future__ import annotations

from cloud.track.digests import digest_of_arrays, digest_of_file
from cloud.track.facts import environment, git_state
from cloud.track.lineage import Link, lineage
from cloud.track.recorder import Recorder
from cloud.track.runs import Artifact, Event, Histogram, Run, Series
from cloud.track.store import Store, default_path

__all__ = [
    "Artifact",
    "Event",
    "Histogram",
    "Link",
    "Recorder",
    "Run",
    "Series",
    "Store",
    "default_path",
    "digest_of_arrays",
    "digest_of_file",
    "environment",
    "git_state",
    "lineage",
]
