"""What a device believes: every attack that the TUF specification names (section 1.5.2), and what the device says."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tuf.api.metadata import MetaFile, TargetFile

import edge.agent.trust as trust_module
from cloud.hub.repository.repository import Signing
from edge.agent.errors import AgentError, FetchError, MissingError, UntrustedError
from edge.agent.trust import KINDS, LAG, LEAD, Trust, time_of
from lite_runtime.updates.places import channel_target, file_of_target, release_target
from lite_runtime.updates.release import Channel, written
from tests.cloud.hub.world import DAY, START, Files, World


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, signing={"root": Signing(3, 2)})
    made.add("1.0", 1, 2)
    made.releases.promote("keys", "1.0", "stable")
    return made


@pytest.fixture
def refused(caplog: pytest.LogCaptureFixture) -> Any:
    """Calls something that must be refused as a kind of attack, by an error that says what to do, and in the log."""
    caplog.set_level(logging.WARNING, "msedge.agent.trust")

    def call(kind: str, what: Any, *args: Any, text: str | None = None) -> UntrustedError:
        caplog.clear()
        with pytest.raises(UntrustedError, match=text) as caught:
            what(*args)
        assert caught.value.kind == kind and KINDS[kind] in str(caught.value)
        assert f"refused ({kind})" in caplog.text
        return caught.value

    return call


def test_a_release_is_trusted(world: World) -> None:
    files = world.files()
    device = world.device(files)
    with pytest.raises(AgentError, match="call refresh"):
        device.release("keys", "1.0")
    device.refresh()
    assert device.release("keys", "1.0") == world.releases.release("keys", "1.0")
    assert device.channel("keys", "stable") == Channel("keys", "stable", 1, ("1.0",))
    asked = len(files.asked)
    device.refresh()
    device.release("keys", "1.0")
    assert files.asked[asked:] == ["metadata/2.root.json", "metadata/timestamp.json"]  # all else is kept
    with pytest.raises(MissingError):
        device.release("keys", "2.0")
    with pytest.raises(MissingError):
        device.channel("nothing", "stable")


# -- the attacks -------------------------------------------------------------------------------------------------------


def test_another_key(world: World, refused: Any) -> None:
    """Arbitrary software: metadata that nobody signed who may."""
    for name, role in (("timestamp", "deltas-1"), ("1.targets", "keys-1"), ("3.keys", "other-1")):
        files = world.files()
        world.forge(files, name, (role,), lambda signed: None)
        device = world.device(files, f"device-{role}")
        _fit(world, files)
        refused("signatures", lambda device=device: (device.refresh(), device.release("keys", "1.0")), text="0/1 keys")


def _fit(world: World, files: Files) -> None:
    """Let snapshot and timestamp name the files as they are now, with the stolen keys of the hub."""

    def renamed(signed: Any) -> None:
        for name, meta in signed.meta.items():
            data = files.files[f"metadata/{meta.version}.{name}"]
            signed.meta[name] = MetaFile.from_data(meta.version, data, ["sha256"])

    def stamped(signed: Any) -> None:
        data = files.files[f"metadata/{signed.snapshot_meta.version}.snapshot.json"]
        signed.snapshot_meta = MetaFile.from_data(signed.snapshot_meta.version, data, ["sha256"])

    number = files.metadata("timestamp").signed.snapshot_meta.version
    timestamped = files.metadata("timestamp").signatures.keys() == world.files().metadata("timestamp").signatures.keys()
    world.forge(files, f"{number}.snapshot", ("snapshot-1",), renamed)
    if timestamped:
        world.forge(files, "timestamp", ("timestamp-1",), stamped)


def test_rollback_of_the_timestamp(world: World, refused: Any) -> None:
    old = world.files()
    world.add("2.0", 1, 3)
    device = world.device(new := world.files())
    device.refresh()
    new.files["metadata/timestamp.json"] = old.files["metadata/timestamp.json"]
    refused("rollback", device.refresh, text="timestamp version 3 must be >= 4")
    device = world.device(world.files())
    device.refresh()  # nothing was lost
    assert device.release("keys", "2.0").version == "2.0"


def test_rollback_of_the_snapshot_by_a_stolen_key(world: World, refused: Any) -> None:
    old = world.files()
    world.add("2.0", 1, 3)
    device = world.device(files := world.files())
    device.refresh()

    def back(signed: Any) -> None:
        signed.version += 1
        signed.snapshot_meta = old.metadata("timestamp").signed.snapshot_meta

    world.forge(files, "timestamp", ("timestamp-1",), back)
    refused("rollback", device.refresh, text="snapshot version must be >=")


def test_rollback_of_an_application_by_the_hubs_keys(world: World, refused: Any) -> None:
    """Who has stolen all keys of the hub can hide a release from new devices alone, and can offer no other."""
    world.add("2.0", 1, 3)
    device = world.device(files := world.files())
    device.refresh()
    old = MetaFile.from_data(2, files.files["metadata/2.keys.json"], ["sha256"])
    number = files.metadata("timestamp").signed.snapshot_meta.version

    def back(signed: Any) -> None:
        signed.version += 1
        signed.meta["keys.json"] = old

    world.forge(files, f"{number}.snapshot", ("snapshot-1",), back, to=f"{number + 1}.snapshot")
    data = files.files[f"metadata/{number + 1}.snapshot.json"]

    def on(signed: Any) -> None:
        signed.version += 1
        signed.snapshot_meta = MetaFile.from_data(number + 1, data, ["sha256"])

    world.forge(files, "timestamp", ("timestamp-1",), on)
    refused("rollback", device.refresh, text=r"keys\.json")

    def without(signed: Any) -> None:
        signed.version += 1
        del signed.meta["keys.json"]

    world.forge(files, f"{number}.snapshot", ("snapshot-1",), without, to=f"{number + 1}.snapshot")
    data = files.files[f"metadata/{number + 1}.snapshot.json"]
    world.forge(files, "timestamp", ("timestamp-1",), on)
    refused("rollback", device.refresh, text="missing info")


def test_freeze(world: World, refused: Any) -> None:
    device = world.device(frozen := world.files())
    device.refresh()
    world.add("2.0", 1, 3)
    world.now += 2 * DAY
    device.refresh()  # within the time of the timestamp nobody can know
    world.now += 2 * DAY
    refused("freeze", device.refresh, text="the newest timestamp that is offered, version 3, expired")
    assert frozen.asked[-1] == "metadata/timestamp.json"
    world.repository.publish()
    device = world.device(world.files())
    device.refresh()
    assert device.release("keys", "2.0")


def test_freeze_of_the_snapshot_by_a_stolen_key(world: World, refused: Any) -> None:
    device = world.device(files := world.files())
    world.now += 15 * DAY
    world.forge(files, "timestamp", ("timestamp-1",), _for_days(world, 3))
    refused("freeze", device.refresh, text="snapshot")


def _for_days(world: World, days: int) -> Any:
    from cloud.hub.repository.shelf import time_from

    def change(signed: Any) -> None:
        signed.version += 1
        signed.expires = time_from(world.now + days * DAY)

    return change


def test_an_owner_who_does_not_sign(world: World, refused: Any) -> None:
    world.now += 360 * DAY
    world.repository.renew(within=10)
    world.repository.publish()
    device = world.device(world.files())
    device.refresh()
    world.now += 2 * DAY
    files = world.files()
    number = files.metadata("timestamp").signed.snapshot_meta.version
    role = files.metadata(f"{number}.snapshot").signed.meta["keys.json"].version
    world.forge(files, f"{role}.keys", ("keys-1",), lambda signed: _expire(signed, world.now))
    _fit(world, files)
    other = world.device(files, "other")
    other.refresh()
    refused("expired", other.release, "keys", "1.0", text=r"keys\.json.*it expired")


def _expire(signed: Any, now: float) -> None:
    from cloud.hub.repository.shelf import time_from

    signed.expires = time_from(now - 60)


def test_mix_and_match(world: World, refused: Any) -> None:
    """Files of different moments, each well signed."""
    old = world.files()
    first = old.metadata("timestamp").signed.snapshot_meta.version
    world.add("2.0", 1, 3)
    new = world.files()
    number = new.metadata("timestamp").signed.snapshot_meta.version
    snapshot = new.copy()
    snapshot.files[f"metadata/{number}.snapshot.json"] = old.files[f"metadata/{first}.snapshot.json"]
    refused("mix-and-match", world.device(snapshot).refresh, text="snapshot")
    role = new.copy()
    role.files["metadata/4.keys.json"] = old.files["metadata/3.keys.json"]
    device = world.device(role, "other")
    device.refresh()
    refused("mix-and-match", device.release, "keys", "2.0", text="keys")


def test_mix_and_match_where_the_snapshot_has_no_digests(world: World, refused: Any) -> None:
    files = world.files()
    world.forge(files, "2.keys", ("keys-1",), lambda signed: None)

    def bare(signed: Any) -> None:
        signed.meta["keys.json"] = MetaFile(3)

    number = files.metadata("timestamp").signed.snapshot_meta.version
    world.forge(files, f"{number}.snapshot", ("snapshot-1",), bare)
    data = files.files[f"metadata/{number}.snapshot.json"]
    stamp = MetaFile.from_data(number, data, ["sha256"])
    world.forge(files, "timestamp", ("timestamp-1",), lambda signed: setattr(signed, "snapshot_meta", stamp))
    files.files["metadata/3.keys.json"] = files.files["metadata/2.keys.json"]
    device = world.device(files)
    device.refresh()
    refused("mix-and-match", device.release, "keys", "1.0", text="Expected keys v3, got v2")


class Endless(Files):
    """A file that never ends, counted."""

    endless, sent, part = "", 0, b" " * 1000

    def open(self, name: str, start: int = 0) -> Iterator[bytes]:
        if name != self.endless:
            yield from super().open(name, start)
        while name == self.endless:
            self.sent += len(self.part)
            yield self.part


@pytest.mark.parametrize("name", ["metadata/2.root.json", "metadata/timestamp.json", "metadata/1.targets.json", ""])
def test_endless_data(world: World, refused: Any, name: str) -> None:
    files = Endless(world.files().files)
    found = world.repository.shelf().role("keys")
    assert found is not None
    target = found.signed.targets[release_target("keys", "1.0")]
    files.endless = name or file_of_target(target.path, target.hashes["sha256"])
    device = world.device(files)
    refused("endless data", lambda: (device.refresh(), device.release("keys", "1.0")))
    most = 512_000 if "root" in name else 16_384 if "timestamp" in name else 5_000
    assert files.sent <= most + 1000


def test_slow_retrieval(world: World, refused: Any) -> None:
    moment = [0.0]

    class Slow(Endless):
        def open(self, name: str, start: int = 0) -> Iterator[bytes]:
            for part in super().open(name, start):
                moment[0] += 20.0
                yield part

    files = Slow(world.files().files)
    files.endless, files.part = "metadata/timestamp.json", b" "
    device = world.device(files, moment=lambda: moment[0])
    refused("slow retrieval", device.refresh, text="bytes in 80 s")
    files.endless = ""
    device.refresh()  # a slow network alone is none


def test_a_file_that_was_replaced(world: World, refused: Any) -> None:
    files = world.files()
    device = world.device(files)
    device.refresh()
    for name in list(files.files):
        if name.endswith(".release.json"):
            files.files[name] = files.files[name].replace(b"model", b"modem")
    refused("wrong file", device.release, "keys", "1.0")
    assert not list((world.folder / "device").glob("targets/*"))


def test_another_applications_key(world: World, refused: Any) -> None:
    """Wrong software: the owner of one application signs a release of another."""
    files = world.files()
    target = files.metadata("3.keys").signed.targets[release_target("keys", "1.0")]

    def steal(signed: Any) -> None:
        signed.targets[release_target("keys", "6.6")] = TargetFile(
            target.length, target.hashes, release_target("keys", "6.6")
        )

    world.forge(files, "1.other", ("other-1",), steal)
    _fit(world, files)
    device = world.device(files)
    device.refresh()
    with pytest.raises(MissingError):
        device.release("keys", "6.6")


def test_a_release_under_another_name(world: World, refused: Any) -> None:
    files = world.files()
    old = files.metadata("3.keys").signed.targets[release_target("keys", "1.0")]
    raw = files.files[file_of_target(old.path, old.hashes["sha256"])]
    channel = written(Channel("keys", "beta", 1, ("1.0",)))
    other = written(Channel("keys", "stable", 1, ("1.0",)))
    for name, data in ((release_target("keys", "2.0"), raw), (channel_target("keys", "c"), channel),
                       (release_target("keys", "3.0"), other)):  # fmt: skip
        made = TargetFile.from_data(name, data, ["sha256"])
        files.files[file_of_target(name, made.hashes["sha256"])] = data
        world.forge(files, "3.keys", ("keys-1",), lambda signed, made=made: signed.targets.update({made.path: made}))
    _fit(world, files)
    device = world.device(files)
    device.refresh()
    refused("wrong file", device.release, "keys", "2.0", text=r"keys 2\.0 is a document of keys 1\.0")
    refused("wrong file", device.channel, "keys", "c", text="one of keys beta")
    refused("malformed", device.release, "keys", "3.0", text="got 'application, msedge, name")


def test_a_stolen_key_of_deltas_wastes_a_download_at_most(world: World) -> None:
    world.releases.put_deltas({("a" * 64, "b" * 64): b"delta"})
    files = world.files()
    device = world.device(files)
    device.refresh()
    found = device.delta("a" * 64, "b" * 64)
    assert found is not None and found[0] == 5 and device.delta("b" * 64, "a" * 64) is None
    files.files["metadata/2.deltas.json"] = b"{}"
    device = world.device(files, "other")
    device.refresh()
    assert device.delta("a" * 64, "b" * 64) is None  # all can be downloaded without deltas
    assert device.release("keys", "1.0")


def test_too_few_keys_of_the_root(world: World, refused: Any) -> None:
    """Two of three are needed; a thief with one key gets nowhere, with the root's version of the future neither."""
    files = world.files()

    def on(signed: Any) -> None:
        signed.version = 2
        signed.roles["root"].threshold = 1

    world.forge(files, "1.root", ("root-1",), on, to="2.root")
    refused("signatures", world.device(files).refresh, text="root was signed by 1/2 keys")
    world.forge(files, "1.root", ("root-1", "root-1"), on, to="2.root")
    refused("signatures", world.device(files).refresh)
    world.forge(files, "1.root", ("root-1", "root-2"), lambda signed: setattr(signed, "version", 3), to="2.root")
    refused("rollback", world.device(files).refresh, text="Expected root version 2 instead got version 3")


def test_fast_forward_and_recovery(world: World, refused: Any) -> None:
    """A thief of the hub's keys raises version numbers so far that nobody gets past. New keys let devices forget."""
    files = world.files()
    number = files.metadata("timestamp").signed.snapshot_meta.version
    far = 2**31

    def ahead(signed: Any) -> None:
        signed.version = far

    world.forge(files, f"{number}.snapshot", ("snapshot-1",), ahead, to=f"{far}.snapshot")
    data = files.files[f"metadata/{far}.snapshot.json"]

    def stamped(signed: Any) -> None:
        signed.version = far
        signed.snapshot_meta = MetaFile.from_data(far, data, ["sha256"])

    world.forge(files, "timestamp", ("timestamp-1",), stamped)
    device = world.device(files)
    device.refresh()
    refused("rollback", world.device(world.files()).refresh)
    world.repository.rotate("timestamp")
    world.repository.rotate("snapshot")
    device = world.device(world.files())
    device.refresh()
    assert device.release("keys", "1.0")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"signed": 1}', b"[" * 16_000, b"\xff\xfe", b"1e999",
                                 b'{"signed": {"_type": "root"}, "signatures": []}'])  # fmt: skip
def test_nonsense(world: World, refused: Any, raw: bytes) -> None:
    for name in ("2.root", "timestamp", "3.snapshot", "1.targets"):
        files = world.files()
        files.files[f"metadata/{name}.json"] = raw
        with pytest.raises(UntrustedError) as caught:
            world.device(files, f"device-{name}").refresh()
        assert caught.value.kind in ("malformed", "mix-and-match", "endless data")  # a snapshot has its size in advance
    device = world.device(world.files(), "device-timestamp")
    device.refresh()  # nothing was kept of it


def test_a_mirror_that_is_down_or_empty(world: World) -> None:
    class Down(Files):
        def open(self, name: str, start: int = 0) -> Iterator[bytes]:
            raise FetchError("no route")

    with pytest.raises(FetchError, match="no route"):
        world.device(Down({})).refresh()
    with pytest.raises(MissingError, match="is its address right"):
        world.device(Files({})).refresh()


# -- time --------------------------------------------------------------------------------------------------------------


def test_the_time_at_which_expiry_is_judged() -> None:
    assert time_of(START, 0.0) == START and time_of(0.0, 0.0) == 0.0
    assert time_of(START - LAG, START) == START and time_of(START + 5, START) == START + 5
    for now in (START - LAG - 1, 0.0, -1e30, START + LEAD + 1, 1e30):
        with pytest.raises(UntrustedError) as caught:
            time_of(now, START)
        assert caught.value.kind == "clock" and "NTP" in str(caught.value)


def test_a_clock_of_the_past(world: World, refused: Any) -> None:
    """The root that a device is given has a time: a clock of 1970 is noticed at the first refresh."""
    device = world.device(world.files(), clock=lambda: 0.0)
    refused("clock", device.refresh, text="the clock says 1970-01-01 00:00 UTC, but")
    clock = [world.now]
    device = world.device(world.files(), clock=lambda: clock[0])
    device.refresh()
    world.now += 10 * DAY
    world.repository.publish()
    device = world.device(world.files(), clock=lambda: clock[0])
    refused("clock", device.refresh)  # the hub signed in the clock's future
    clock[0] = world.now - LAG / 2
    device.refresh()


def test_a_slow_clock_cannot_be_used_to_freeze(world: World, refused: Any) -> None:
    """Half a day behind is tolerated, but expiry is judged at the time that is known."""
    world.now += 2 * DAY
    world.repository.publish()
    world.device(world.files()).refresh()
    frozen = world.files()
    frozen.files["metadata/timestamp.json"] = world.files().files["metadata/timestamp.json"]
    known = world.now

    def shorter(signed: Any) -> None:
        from cloud.hub.repository.shelf import time_from

        signed.version += 1
        signed.unrecognized_fields.clear()
        signed.expires = time_from(known - 60)

    world.forge(frozen, "timestamp", ("timestamp-1",), shorter)
    refused("freeze", world.device(frozen, clock=lambda: known - LAG / 2).refresh)


def test_a_clock_of_the_far_future(world: World, refused: Any) -> None:
    device = world.device(world.files(), clock=lambda: START + 30 * 365 * DAY)
    refused("clock", device.refresh, text="ten years after the newest known time")
    world.device(world.files()).refresh()  # it did no lasting harm


def test_a_stolen_timestamp_key_cannot_spoil_the_clock_for_ever(world: World, refused: Any) -> None:
    from cloud.hub.repository.shelf import SIGNED, time_from, time_text

    far = START + 1000 * DAY

    def future(signed: Any) -> None:
        signed.version += 1
        signed.expires = time_from(far + DAY)
        signed.unrecognized_fields[SIGNED] = time_text(far)

    files = world.files()
    world.forge(files, "timestamp", ("timestamp-1",), future)
    refused("clock", world.device(files).refresh)
    refused("clock", world.device(world.files()).refresh)
    world.repository.rotate("timestamp")
    world.device(world.files()).refresh()


def test_two_years_in_a_drawer(world: World, refused: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An agent with the first root walks to the newest one, past roots that have expired and keys that are gone."""
    old = world.device(world.files(), "drawer")
    old.refresh()
    early = world.files()
    for quarter in range(8):
        world.now += 91.3 * DAY
        world.repository.rotate("root")
        world.repository.rotate(("timestamp", "snapshot", "targets", "keys")[quarter % 4])
        world.add(f"1.{quarter + 1}", quarter + 2)
        world.repository.publish()
    assert world.now > START + 730 * DAY
    files = world.files()
    roots = [files.metadata(f"{number}.root").signed for number in range(1, 15)]
    assert sum(root.expires.timestamp() < world.now for root in roots) >= 6  # of the roots on the way
    assert not set(roots[0].roles["root"].keyids) & set(roots[-1].roles["root"].keyids)
    refused("freeze", world.device(early, "drawer").refresh, text="the newest root that is offered, version 1, expired")
    device = world.device(files, "drawer")
    device.refresh()
    assert device.release("keys", "1.8")
    never = world.device(files, "never connected")
    never.refresh()
    assert never.release("keys", "1.8")
    back = files.copy()
    back.files["metadata/timestamp.json"] = early.files["metadata/timestamp.json"]
    refused("signatures", world.device(back, "drawer").refresh)  # the timestamp's keys of then count no more
    world.now += DAY
    world.repository.publish()
    world.repository.renew(400)
    newest = world.files()
    world.device(newest, "drawer").refresh()
    newest.files["metadata/timestamp.json"] = files.files["metadata/timestamp.json"]
    refused("rollback", world.device(newest, "drawer").refresh)


# -- storage -----------------------------------------------------------------------------------------------------------


def test_a_device_that_stops_at_any_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was stored when it stopped, the next refresh succeeds, and older states stay refused."""
    first = world.files()
    world.repository.rotate("root")
    world.repository.rotate("timestamp")
    world.add("2.0", 1, 3)
    files = world.files()
    real, count = trust_module.write_atomically, [0]

    def stopping(path: Any, data: Any, *rest: Any, **more: Any) -> None:
        count[0] -= 1
        if count[0] < 0:
            raise KeyboardInterrupt
        real(path, data, *rest, **more)

    monkeypatch.setattr(trust_module, "write_atomically", stopping)
    for writes in range(30):
        name = f"device {writes}"
        count[0] = 100
        world.device(first, name).refresh()
        count[0] = writes
        device = world.device(files, name)
        try:
            device.refresh()
            device.release("keys", "2.0")
        except KeyboardInterrupt:
            count[0] = 100
            device = world.device(files, name)
            device.refresh()
            assert device.release("keys", "2.0")
            with pytest.raises(UntrustedError):
                stale = files.copy()
                stale.files["metadata/timestamp.json"] = first.files["metadata/timestamp.json"]
                world.device(stale, name).refresh()
        else:
            break
    assert 5 < writes < 29


def test_every_write_is_on_the_disk(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """tuf stores by a method of its own, which this replaces: it must be the only way to the disk."""
    made: list[str] = []
    real = trust_module.write_atomically
    monkeypatch.setattr(
        trust_module, "write_atomically",
        lambda path, *rest, **more: (made.append(os.path.relpath(path, world.folder)), real(path, *rest, **more)),
    )  # fmt: skip
    device = world.device(world.files())
    device.refresh()
    device.release("keys", "1.0")
    there = {
        path.relative_to(world.folder).as_posix() for path in (world.folder / "device").rglob("*") if path.is_file()
    }
    assert there == set(made) and len(made) == len(set(made)) == 7
    assert not any(path.is_symlink() for path in (world.folder / "device").rglob("*"))


@pytest.mark.parametrize("content", [b"", b"{", b"\0" * 100])
def test_damaged_files_on_the_device(world: World, content: bytes) -> None:
    device = world.device(world.files())
    device.refresh()
    device.release("keys", "1.0")
    for path in sorted((world.folder / "device").rglob("*.json")):
        kept = path.read_bytes()
        path.write_bytes(content)
        again = world.device(world.files())
        again.refresh()
        assert again.release("keys", "1.0")
        assert path.read_bytes() == kept or path.name == "root.json"


def test_a_folder_that_cannot_be_written(world: World) -> None:
    (world.folder / "file").write_bytes(b"")
    with pytest.raises(AgentError, match="check the disk"):
        Trust(world.folder / "file" / "device", world.root, world.files(), lambda: world.now).refresh()


def test_a_root_that_is_none(world: World, refused: Any) -> None:
    for raw in (b"", json.dumps({"signed": {}}).encode(), world.files().files["metadata/1.targets.json"]):
        device = Trust(world.folder / "device", raw, world.files(), lambda: world.now)
        refused("malformed", device.refresh)


def test_old_documents_take_no_room_for_ever(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust_module, "_KEPT", 3)
    for number in range(2, 7):
        world.add(f"{number}.0", number)
    files = world.files()
    device = world.device(files)
    device.refresh()
    for number in range(1, 7):
        device.release("keys", f"{number}.0")
    assert len(list((world.folder / "device" / "targets").iterdir())) == 3
    asked = len(files.asked)
    device.release("keys", "6.0")
    assert len(files.asked) == asked
    assert device.release("keys", "1.0") == world.releases.release("keys", "1.0")
