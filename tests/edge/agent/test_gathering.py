"""Files of a release: from old files, deltas and pieces, however often and wherever it is interrupted."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloud.hub.deltas import make
from edge.agent.errors import AgentError, FetchError
from edge.agent.gathering import DELTA, Gathering, Held
from lite_runtime.updates.pieces import file_of, pieces_of
from lite_runtime.updates.release import File, Release
from tests.edge.agent.shelf import Shelf, model

OLD, NEW = model(2.0), model(3.0, seed=1)


class Place:
    """A shelf with one version, and folders for it."""

    def __init__(self, folder: Path, files: Mapping[str, bytes]) -> None:
        self.folder, self.shelf = folder, Shelf(folder / "shelf")
        self.release, self.wanted = self.shelf.add("1", files), files
        for name in ("files", "parts", "old"):
            (folder / name).mkdir()
        self.held: dict[str, tuple[Held, ...]] = {name: () for name in files}

    def hold(self, name: str, data: bytes, checked: bool = True, like: bytes | None = None) -> None:
        """An old file, which should have the bytes `like`."""
        path = self.folder / "old" / name
        path.write_bytes(data if like is None else like)
        file = file_of(path)
        path.write_bytes(data)
        self.held[name] = (*self.held[name], Held(path, file, checked))

    def gathering(self) -> Gathering:
        folder = self.folder
        return Gathering(self.release, self.shelf, folder / "files", folder / "parts", self.held)

    def gather(self) -> None:
        one = self.gathering()
        one.fetch()
        one.rebuild()
        assert {name: (self.folder / "files" / name).read_bytes() for name in self.wanted} == dict(self.wanted)


@given(
    breaks=st.lists(st.integers(0, 90_000), max_size=6),
    spoiled=st.lists(st.tuples(st.integers(0, 90_000), st.integers(0, 90_000)), max_size=6),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_download_that_breaks_and_parts_that_are_torn(
    tmp_path_factory: pytest.TempPathFactory, breaks: list[int], spoiled: list[tuple[int, int]]
) -> None:
    """After each break, bytes of what is there are lost or wrong."""
    place = Place(tmp_path_factory.mktemp("place"), {"m": NEW})
    for at, (where, length) in zip(breaks, spoiled, strict=False):
        left = [at]

        def fault(what: str, start: int, part: bytes, left: list[int] = left) -> bytes:
            left[0] -= len(part)
            if left[0] < 0:
                raise FetchError("it broke")
            return part

        place.shelf.fault = fault
        try:
            place.gather()
            return
        except FetchError:
            pass
        path = place.folder / "parts" / "m"
        if path.exists():
            held = bytearray(path.read_bytes())
            del held[length:]
            held[where : where + 5] = bytes(len(held[where : where + 5]))
            path.write_bytes(held)
    place.shelf.fault = lambda what, at, part: part
    place.gather()


def test_what_old_files_have_is_not_fetched(tmp_path: Path) -> None:
    place = Place(tmp_path, {"m": NEW, "same": OLD})
    place.hold("same", OLD)
    place.hold("m", OLD)
    one = place.gathering()
    disk, download = one.needed()
    assert disk == len(NEW) and download <= len(NEW)
    place.gather()
    assert (tmp_path / "files/same").stat().st_nlink == 2
    assert place.shelf.given <= len(NEW)


def test_unchecked_and_damaged_old_files_are_only_used_where_they_are_right(tmp_path: Path) -> None:
    wrong = bytearray(OLD)
    wrong[len(wrong) // 2] ^= 1
    place = Place(tmp_path, {"m": OLD})
    place.hold("m", bytes(wrong), checked=True, like=OLD)  # it was damaged after it was checked
    (tmp_path / "old/m").unlink()
    (tmp_path / "old/m").write_bytes(wrong)
    place.held["m"] = (place.held["m"][0]._replace(checked=False),)
    place.gather()
    assert 0 < place.shelf.given < len(OLD)


def test_without_links_files_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(1, "no links here")

    monkeypatch.setattr("os.link", refuse)
    place = Place(tmp_path, {"m": OLD})
    place.hold("m", OLD)
    place.gather()
    assert place.shelf.given == 0


def delta(place: Place, data: bytes) -> None:
    place.hold("m", OLD)
    place.shelf.deltas[place.held["m"][0].file.sha256, place.release.files["m"].sha256] = data


def test_a_delta_is_smaller(tmp_path: Path) -> None:
    place = Place(tmp_path, {"m": NEW})
    for name, data in (("o", OLD), ("n", NEW)):
        (tmp_path / name).write_bytes(data)
    made = make(tmp_path / "o", tmp_path / "n")
    delta(place, made)
    one = place.gathering()
    one.fetch()
    assert place.shelf.given == len(made) < len(NEW) and (tmp_path / "parts" / f"{DELTA}m").exists()
    place.shelf.down = True
    place.gather()
    assert not list((tmp_path / "parts").iterdir())


@pytest.mark.parametrize("data", [b"x", b"\0" * 5000, b"MSDELTA" * 99])
def test_a_hostile_delta_costs_a_download(tmp_path: Path, data: bytes) -> None:
    place = Place(tmp_path, {"m": NEW})
    delta(place, data)
    place.gather()


def test_a_delta_that_is_not_what_was_signed(tmp_path: Path) -> None:
    place = Place(tmp_path, {"m": NEW})
    delta(place, b"\0" * 5000)
    place.shelf.fault = lambda what, at, part: b"\1" * len(part) if what.startswith("delta") else part
    place.gather()


def test_a_delta_that_is_larger_is_not_fetched(tmp_path: Path) -> None:
    place = Place(tmp_path, {"m": NEW})
    delta(place, bytes(len(NEW)))
    place.gather()
    assert place.shelf.given <= len(NEW)


def test_a_release_whose_pieces_are_another_file(tmp_path: Path) -> None:
    place = Place(tmp_path, {"m": NEW})
    file = place.release.files["m"]
    place.release = place.release._replace(files={"m": file._replace(sha256=hashlib.sha256(b"other").hexdigest())})
    with pytest.raises(AgentError, match="its pieces are not the file that its release names"):
        place.gather()
    assert not (tmp_path / "files/m").exists()


def test_a_slow_source_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(0, 10_000_000, 30))
    monkeypatch.setattr("edge.agent.gathering.time.monotonic", lambda: next(moments))
    place = Place(tmp_path, {"m": NEW})
    with pytest.raises(FetchError, match="expected at least 512 bytes a second, got"):
        place.gather()


def test_a_pause_comes_before_the_first_byte(tmp_path: Path) -> None:
    place = Place(tmp_path, {"m": NEW})

    def stop() -> None:
        raise FetchError("the network costs")

    one = Gathering(place.release, place.shelf, tmp_path / "files", tmp_path / "parts", place.held, stop)
    with pytest.raises(FetchError, match="costs"):
        one.fetch()
    assert place.shelf.given == 0


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    place = Place(tmp_path, {"m": NEW})
    assert pieces_of(tmp_path / "empty") == ()
    sha = hashlib.sha256(b"").hexdigest()
    place.release = Release("a", "1", {"e": File(0, sha, sha, ())})
    one = place.gathering()
    one.fetch()
    assert (tmp_path / "files/e").read_bytes() == b""


def test_a_delta_that_is_offered_and_not_there_costs_nothing(tmp_path: Path) -> None:
    """Whoever has the key of deltas can offer what does not exist; the pieces are there all the same."""
    place = Place(tmp_path, {"m": NEW})
    delta(place, b"x" * 100)
    real = place.shelf.delta_content

    def gone(old: str, new: str, sha256: str, start: int = 0) -> Iterator[bytes]:
        place.shelf.deltas.clear()
        return real(old, new, sha256, start)

    place.shelf.delta_content = gone  # type: ignore[method-assign]
    place.gather()


def test_an_old_file_that_cannot_be_read_is_downloaded(tmp_path: Path) -> None:
    """A bad sector, here a folder in its place."""
    place = Place(tmp_path, {"m": NEW})
    place.hold("m", OLD, checked=False)
    (path, file, _) = place.held["m"][0]
    assert any(piece in place.release.files["m"].pieces for piece in file.pieces)
    path.unlink()
    path.mkdir()
    place.gather()
