"""Data pipelines: their definition (`api`, `ir`), optimisation (`passes`) and reading (`reading`).

    from cloud import data
    pipeline = data.npz("digits.npz").shuffle().map(scale, on="x", rows=True).batch(128)
    for batch in pipeline.batches(seed=0, epoch=3): ...
"""

from __future__ import annotations

from cloud.data.api import (
    Pipeline,
    arrays,
    folder,
    from_dict,
    hosted,
    iterable,
    mix,
    npz,
    parquet,
    records,
    source,
    tar,
    text,
    zipped,
)
from cloud.data.augment import Apply, Policy
from cloud.data.profile import Profile, Tuned, profile, tune
from cloud.data.reading.device import to_device
from cloud.data.reading.iterate import Batches, Position
from cloud.data.records import write_records

__all__ = [
    "Apply", "Batches", "Pipeline", "Policy", "Position", "Profile", "Tuned", "arrays", "folder", "from_dict", "hosted",
    "iterable", "mix", "npz", "parquet", "profile", "records", "source", "tar", "text", "to_device", "tune",
    "write_records", "zipped",
]  # fmt: skip
