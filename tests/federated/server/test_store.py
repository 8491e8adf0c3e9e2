"""Personal versions: kept with consent, as long as retention says, checked before they are written."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from federated.errors import FederatedError
from federated.server.store import PersonalReader, PersonalStore, Retention

BASE = {"body": np.arange(4, dtype=np.float32), "head": np.zeros((2, 3), np.float32)}
MINE = {"body": BASE["body"], "head": np.full((2, 3), 0.25, np.float32)}


@pytest.fixture
def store(tmp_path: Path) -> PersonalStore:
    return PersonalStore(tmp_path / "personal.db", Retention(versions=2, days=10))


def test_a_version_is_the_difference_and_gives_the_parameters_back(store: PersonalStore) -> None:
    made = store.put("d1", "digest", MINE, BASE, round=3, consent="serve")
    assert made is not None and set(made.delta) == {"head"}
    found = store.get("d1", serving=True)
    assert found is not None and (found.version, found.base, found.round) == (1, "digest", 3)
    for name, leaf in found.params(BASE).items():
        np.testing.assert_array_equal(leaf, MINE[name])
        assert leaf.dtype == np.float32


def test_consent(store: PersonalStore) -> None:
    store.put("d1", "x", MINE, BASE, round=1, consent="backup")
    assert store.get("d1") is not None
    assert store.get("d1", serving=True) is None
    assert store.put("d1", "x", MINE, BASE, round=2, consent="none") is None
    assert store.devices() == {}
    with pytest.raises(FederatedError, match="expected one of none, backup, serve"):
        store.put("d1", "x", MINE, BASE, round=2, consent="maybe")


def test_consent_taken_back_holds_for_versions_before(store: PersonalStore) -> None:
    store.put("d1", "x", MINE, BASE, round=1, consent="serve")
    assert store.get("d1", 1, serving=True) is not None
    store.put("d1", "x", MINE, BASE, round=2, consent="backup")
    assert store.get("d1", 1, serving=True) is None and store.get("d1", 1) is not None
    store.put("d1", "x", MINE, BASE, round=3, consent="serve")
    assert store.get("d1", serving=True) is not None and store.get("d1", 2, serving=True) is None


def test_retention(store: PersonalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr("federated.server.store.time.time", lambda: now)
    for number in range(1, 5):
        store.put("d1", "x", MINE, BASE, round=number, consent="serve")
    assert store.get("d1", 2) is None
    kept = store.get("d1", 3)
    assert kept is not None and kept.round == 3
    assert store.devices() == {"d1": 4}
    now += 11 * 86_400
    assert store.get("d1") is None
    assert store.devices() == {}


def rows(store: PersonalStore) -> int:
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        return int(database.execute("SELECT count(*) FROM versions").fetchone()[0])


def test_reading_deletes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that opened a store with the default retention once deleted what a longer one kept."""
    now = 1e9
    monkeypatch.setattr("federated.server.store.time.time", lambda: now)
    store = PersonalStore(tmp_path / "x.db", Retention(10, 365))
    for number in range(8):
        store.put("d1", "x", MINE, BASE, round=number, consent="serve")
    now += 120 * 86_400
    for opened in (PersonalReader(store.path), PersonalStore(store.path)):
        assert opened.retention == Retention(10, 365)
        assert opened.devices() == {"d1": 8} and opened.stamps()["d1"][0] == 8
        assert opened.get("d1", 1, serving=True) is not None
    assert rows(store) == 8
    now += 300 * 86_400
    assert store.devices() == {} and store.get("d1") is None
    assert rows(store) == 8
    assert store.expire() == 8 and rows(store) == 0


def test_expiring_keeps_the_newest_versions_of_every_device(store: PersonalStore) -> None:
    for device in ("d1", "d2"):
        for number in range(2):
            store.put(device, "x", MINE, BASE, round=number, consent="serve")
    assert PersonalStore(store.path, Retention(1, 10)).expire() == 2
    assert store.devices() == {"d1": 2, "d2": 2} and store.get("d1", 1) is None


def test_readers_do_not_wait_for_writers(store: PersonalStore) -> None:
    store.put("d1", "x", MINE, BASE, round=1, consent="serve")
    reader = PersonalReader(store.path, patience=0.01)
    with contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE versions SET round = 2")
        assert reader.devices() == {"d1": 1}
        writer.execute("ROLLBACK")
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(FederatedError, match="locked"):
            reader.devices()


def test_a_removed_store_is_not_made_again(store: PersonalStore, tmp_path: Path) -> None:
    reader = PersonalReader(store.path)
    Path(store.path).unlink()
    for use in (reader.devices, store.devices, lambda: store.forget("d1"), lambda: PersonalReader(store.path)):
        with pytest.raises(FederatedError, match="there is no such file"):
            use()
    assert not Path(store.path).exists()


def test_a_store_without_retention_is_read(store: PersonalStore) -> None:
    store.put("d1", "x", MINE, BASE, round=1, consent="serve")
    with contextlib.closing(sqlite3.connect(store.path)) as database:
        database.execute("DROP TABLE retention")
    assert PersonalReader(store.path).devices() == {"d1": 1}
    assert PersonalReader(store.path).retention == PersonalStore(store.path).retention == Retention()


def test_forgetting_leaves_no_bytes(store: PersonalStore) -> None:
    odd = {"head": np.full((2, 3), 123.456, np.float32)}
    store.put("d1", "x", odd, BASE, round=1, consent="serve")
    store.put("d2", "x", MINE, BASE, round=1, consent="serve")
    raw = odd["head"].tobytes()
    assert raw in Path(store.path).read_bytes()
    assert store.forget("d1") == 1
    assert raw not in Path(store.path).read_bytes()
    assert store.devices() == {"d2": 1}


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"other": np.zeros(1, np.float32)}, "not a parameter"),
        ({"head": np.zeros((3, 2), np.float32)}, r"expected float32\[2, 3\], got float32\[3, 2\]"),
        ({"head": np.zeros((2, 3))}, "got float64"),
        ({"head": np.full((2, 3), np.nan, np.float32)}, "NaN"),
    ],
)
def test_what_does_not_fit_the_bundle_is_refused(store: PersonalStore, params: dict, says: str) -> None:
    with pytest.raises(FederatedError, match=says):
        store.put("d1", "x", params, BASE, round=1, consent="serve")
    assert store.devices() == {}


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database at all, but long enough to be looked at" * 10)
    with pytest.raises(FederatedError, match="check the file"):
        PersonalStore(tmp_path / "x.db")


def test_a_damaged_version_is_named(store: PersonalStore) -> None:
    store.put("d1", "x", MINE, BASE, round=1, consent="serve")
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE versions SET delta = x'00'")
    database.close()
    with pytest.raises(FederatedError, match="device 'd1'"):
        store.get("d1")


@pytest.mark.parametrize("settings", [{"versions": 0}, {"days": 0}, {"days": float("inf")}])
def test_retention_is_checked(settings: dict) -> None:
    with pytest.raises(FederatedError, match="retention"):
        Retention(**settings)
