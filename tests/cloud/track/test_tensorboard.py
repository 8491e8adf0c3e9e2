"""Event files contain the same values as the store: by TensorBoard's own reader, and by one written from the formats
alone."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloud.errors import TrackError
from cloud.track import Histogram, Store
from cloud.track.tensorboard import export
from tests.cloud.track.decode import events


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "runs.sqlite", create=True) as made:
        yield made


def filled(store: Store) -> str:
    """A run with scalars and a histogram."""
    run = store.start()
    store.add_scalars(run, [("step/loss", 1, 10.5, 0.5), ("step/loss", 300, 11.0, math.nan), ("größe", 2, 1.0, -2.0)])
    store.add_histogram(run, "weights/w", Histogram(7, (-1.0, 0.0, 2.0), (1, 3), 0.5, 3.0))
    return run


def loaded(folder: Path) -> Any:
    """A run as TensorBoard loads it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of TensorBoard's own imports
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    return EventAccumulator(str(folder)).Reload()


def test_scalars_and_histograms_in_tensorboard(store: Store, tmp_path: Path) -> None:
    run = filled(store)
    for _ in range(2):  # the second file replaces the first
        written = export(store, store.run(run), tmp_path / "tb")
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    board = loaded(written.parent)
    assert sorted(board.Tags()["scalars"]) == ["größe", "step/loss"] and board.Tags()["histograms"] == ["weights/w"]
    first, second = board.Scalars("step/loss")
    assert (first.wall_time, first.step, first.value) == (10.5, 1, 0.5)
    assert (second.wall_time, second.step) == (11.0, 300) and math.isnan(second.value)
    (spread,) = board.Histograms("weights/w")
    found = spread.histogram_value
    assert (spread.step, found.min, found.max, found.num) == (7, -1.0, 2.0, 4.0)
    assert (found.sum, found.sum_squares) == (2.0, 3.25)
    assert (tuple(found.bucket_limit), tuple(found.bucket)) == ((-1.0, 0.0, 2.0), (0.0, 1.0, 3.0))


def test_scalars_and_histograms(store: Store, tmp_path: Path) -> None:
    run = filled(store)
    written = export(store, store.run(run), tmp_path / "tb")
    assert written.parent == tmp_path / "tb" / run and "tfevents" in written.name
    scalars = {(e["tag"], e["step"]): e for e in events(written.read_bytes()) if "value" in e}
    assert (scalars["step/loss", 1]["value"], scalars["step/loss", 1]["time"]) == (0.5, 10.5)
    assert math.isnan(scalars["step/loss", 300]["value"]) and scalars["größe", 2]["value"] == -2.0
    (spread,) = (e for e in events(written.read_bytes()) if "limits" in e)
    assert (spread["tag"], spread["step"], spread["num"], spread["sum"]) == ("weights/w", 7, 4.0, 2.0)
    assert (spread["min"], spread["max"]) == (-1.0, 2.0)
    assert spread["limits"] == (-1.0, 0.0, 2.0) and spread["counts"] == (0.0, 1.0, 3.0)
    assert spread["squares"] == 0.25 + 3.0


def test_an_impossible_folder_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackError, match="file"):
        export(store, store.run(store.start()), tmp_path / "file")
