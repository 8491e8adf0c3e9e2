"""Event files say what the store says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloud.errors import TrackError
from cloud.track import Histogram, Store
from cloud.track.tensorboard import crc32c, export
from tests.cloud.track.decode import events


def test_the_checksum_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "runs.sqlite", create=True) as made:
        yield made


def test_scalars_and_histograms(store: Store, tmp_path: Path) -> None:
    run = store.start()
    store.add_scalars(run, [("step/loss", 1, 10.5, 0.5), ("step/loss", 300, 11.0, math.nan), ("größe", 2, 1.0, -2.0)])
    store.add_histogram(run, "weights/w", Histogram(7, (-1.0, 0.0, 2.0), (1, 3), 0.5, 3.0))
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


def test_a_folder_that_cannot_be(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackError, match="file"):
        export(store, store.run(store.start()), tmp_path / "file")
