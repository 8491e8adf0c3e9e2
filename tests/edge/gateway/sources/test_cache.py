"""The cache of downloaded bundles: its limit, what it removes, and how downloads go on."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sources import registry
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.catalogue import Before, Fetched, Row, Rows
from edge.gateway.sources.registry import Registry
from tests.waiting import until


class Given:
    """A registry in this process. broken: what its downloads raise."""

    again = 1.0

    def __init__(self, address: str = "given") -> None:
        self.address = self.name = address
        self.held: dict[tuple[str, int], bytes] = {}
        self.broken: dict[tuple[str, int], Exception] = {}
        self.sized = True
        self.down = False
        self.asked: list[tuple[str, int, int]] = []

    def read(self, before: Before) -> Rows:
        if self.down:
            raise GatewayError(503, "no route")
        return Rows([self.row(*key) for key in self.held], {})

    def row(self, name: str, version: int) -> Row:
        data = self.held[name, version]
        found = sha256(data).hexdigest()
        size = len(data) if self.sized else None
        return Row(name=name, version=version, key=found, where=f"{name}/{version}", sha256=found, size=size)

    @contextmanager
    def fetch(self, row: Row, start: int) -> Iterator[Fetched]:
        self.asked.append((row.name, row.version, start))
        data = self.held[row.name, row.version]

        def pieces() -> Iterator[bytes]:
            yield data[start : start + 100]
            if (error := self.broken.get((row.name, row.version))) is not None:
                raise error
            yield data[start + 100 :]

        yield Fetched(start, None, pieces())


def versions(source: Registry, name: str = "m") -> list[int]:
    return sorted(source.scan()[name].versions)


def sizes(root: Path) -> int:
    return sum(path.stat().st_size for path in root.rglob("*.mslite"))


@pytest.mark.parametrize("sized", [True, False])
def test_unlisted_bundles_give_way_and_listed_ones_do_not(make: Any, tmp_path: Path, sized: bool) -> None:
    given = Given()
    given.sized = sized
    datas = [make(float(factor)) for factor in range(1, 6)]
    most = max(map(len, datas)) * 3 + 10
    cache = Cache(tmp_path, most if sized else most + (4 << 20))
    source = Registry(given, cache, moment=30)
    given.held = {("m", i + 1): datas[i] for i in range(2)}
    assert versions(source) == [1, 2]
    given.held = {("m", 2): datas[1], ("m", 3): datas[2]}
    assert versions(source) == [2, 3] and sizes(tmp_path) == sum(map(len, datas[:3]))  # 1 is kept while there is room
    given.held = {("m", i + 1): datas[i] for i in range(1, 4)}
    assert versions(source) == [2, 3, 4]
    if not sized:
        return
    assert sizes(tmp_path) == sum(map(len, datas[1:4]))
    given.held = {("m", i + 1): datas[i] for i in range(1, 5)}
    found = source.scan()["m"]
    assert sorted(found.versions) == [2, 3, 4] and "version 5: the cache of" in found.problem
    assert "repository.cache_bytes" in found.problem and sizes(tmp_path) <= most
    del given.held["m", 2], given.held["m", 3]
    assert versions(source) == [4, 5]


def test_a_return_to_an_earlier_version_needs_no_download(make: Any, tmp_path: Path) -> None:
    given, one, two = Given(), make(1.0), make(2.0)
    source = Registry(given, Cache(tmp_path), moment=30)
    for data in (one, two, one):
        given.held = {("m", 1): data}
        (found,) = source.scan()["m"].versions.values()
        assert Path(found.path).read_bytes() == data
    assert len(given.asked) == 2


def test_registries_that_were_not_read_yet_keep_their_bundles(make: Any, tmp_path: Path) -> None:
    """A registry that is down at the start must find its bundles, whatever others download meanwhile."""
    one, other, datas = Given("one"), Given("other"), [make(1.0), make(2.0)]
    one.held, other.held = {("m", 1): datas[0]}, {("n", 1): datas[1]}
    assert versions(Registry(one, Cache(tmp_path), moment=30)) == [1]
    cache = Cache(tmp_path, max(map(len, datas)) + 10)
    one.down = True
    first, second = Registry(one, cache, moment=30), Registry(other, cache, moment=30)
    found = second.scan()["n"]
    assert not found.versions and "is full" in found.problem
    assert versions(first) == [1] and "its last index is used" in first.problem
    alone = Registry(other, Cache(tmp_path, max(map(len, datas)) + 10), moment=30)  # `one` is no registry any more
    assert versions(alone, "n") == [1]


def test_a_download_goes_on_after_a_restart(make: Any, tmp_path: Path) -> None:
    given, data = Given(), make(1.0)
    given.held, given.broken = {("m", 1): data}, {("m", 1): GatewayError(503, "cut")}
    assert "cut" in Registry(given, Cache(tmp_path), moment=30).scan()["m"].problem
    given.broken.clear()
    assert versions(Registry(given, Cache(tmp_path), moment=30)) == [1]
    assert given.asked == [("m", 1, 0), ("m", 1, 100)]


def test_a_part_that_is_wrong_is_fetched_anew(make: Any, tmp_path: Path) -> None:
    given, data = Given(), make(1.0)
    given.held, given.broken = {("m", 1): data}, {("m", 1): GatewayError(503, "cut")}
    source = Registry(given, Cache(tmp_path), moment=30)
    source.scan()
    (part,) = tmp_path.rglob(".*.part")
    part.write_bytes(b"x" * 100)
    given.broken.clear()
    found = source.scan()["m"]
    assert not found.versions and "sha256" in found.problem and not part.exists()
    assert versions(source) == [1]


def test_a_disk_that_is_full(make: Any, tmp_path: Path) -> None:
    given = Given()
    given.held, given.broken = {("m", 1): make(1.0)}, {("m", 1): OSError(28, "No space left on device")}
    found = Registry(given, Cache(tmp_path), moment=30).scan()["m"]
    assert "cannot save 'm'" in found.problem and "No space left" in found.problem
    assert not list(tmp_path.rglob(".*.part"))


def test_gateways_that_share_a_cache_do_not_write_the_same_file(make: Any, tmp_path: Path) -> None:
    given = Given()
    given.held = {("m", 1): make(1.0)}
    source = Registry(given, Cache(tmp_path), moment=30)
    part = source._shelf._part(given.row("m", 1))
    part.parent.mkdir()
    with open(part, "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert "is being downloaded by another one" in source.scan()["m"].problem
    assert versions(source) == [1]


def test_a_folder_that_cannot_be_made(make: Any, tmp_path: Path) -> None:
    given = Given()
    given.held = {("m", 1): make(1.0)}
    (tmp_path / "file").write_bytes(b"")
    source = Registry(given, Cache(tmp_path / "file"), moment=30)
    found = source.scan()["m"]
    assert not found.versions and "Not a directory" in found.problem and "Not a directory" in source.problem


def test_newer_versions_come_first(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "DOWNLOADS", 1)
    given = Given()
    given.held = {("m", version): make(float(version)) for version in (1, 3, 2, 12)}
    source = Registry(given, Cache(tmp_path), moment=30)
    until(lambda: versions(source) == [1, 2, 3, 12])
    assert [asked[1] for asked in given.asked] == [12, 3, 2, 1] and not source.waiting
