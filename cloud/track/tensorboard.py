"""Runs as TensorBoard event files, written with tensorboardX's messages and record writer.

`tensorboardX.SummaryWriter` itself is not used: it puts the time of writing in the file name, so exporting a run twice
would show every point twice, and it replaces characters in names.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloud.errors import TrackError
from cloud.track.runs import Histogram, Run
from cloud.track.store import Store
from lite_runtime._files import write_atomically

__all__ = ["export"]


def export(store: Store, run: Run, folder: Path) -> Path:
    """Write a run's scalars and histograms to `folder`/`run.id`; returns the file's path. Raises TrackError, and
    ModuleNotFoundError without tensorboardX."""
    from tensorboardX.record_writer import RecordWriter

    target = folder / run.id / f"events.out.tfevents.{int(run.created)}.{run.host}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrackError(f"cannot create the folder {str(target.parent)!r}: {error.strerror}; use another") from error
    try:
        with TemporaryDirectory() as scratch:
            written = Path(scratch) / "events"
            records = RecordWriter(str(written))
            for event in _events(store, run):
                records.write(event.SerializeToString())
            records.close()
            data = written.read_bytes()
    except OSError as error:
        raise TrackError(f"cannot write a temporary file: {error.strerror}; choose a folder with TMPDIR") from error
    write_atomically(target, data, TrackError)
    return target


def _events(store: Store, run: Run) -> Iterator[Any]:
    """tensorboardX's Event messages: the file's version, then every scalar and histogram."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    yield Event(wall_time=run.created, file_version="brain.Event:2")
    for name in store.names(run.id):
        series = store.scalars(run.id, name)
        for step, value, at in zip(series.steps, series.values, series.times, strict=True):
            scalar = Summary.Value(tag=name, simple_value=value)
            yield Event(wall_time=at, step=step, summary=Summary(value=[scalar]))
    for name, found in store.histograms(run.id).items():
        for made in found:
            spread = Summary.Value(tag=name, histo=_histogram(made))
            yield Event(wall_time=run.created, step=made.step, summary=Summary(value=[spread]))


def _histogram(made: Histogram) -> Any:
    """A HistogramProto; its moments are computed from the middles of the buckets."""
    from tensorboardX.proto.summary_pb2 import HistogramProto

    middles = [(low + high) / 2 for low, high in zip(made.edges, made.edges[1:], strict=False)]
    total = sum(made.counts)
    return HistogramProto(
        min=made.edges[0],
        max=made.edges[-1],
        num=total,
        sum=made.mean * total,
        sum_squares=sum(n * m * m for n, m in zip(made.counts, middles, strict=True)),
        # A bucket is defined by its upper edge; an empty one up to the lowest edge marks where the first begins.
        bucket_limit=made.edges,
        bucket=[0, *made.counts],
    )
