"""Repositories: what is made verifies on devices, at every moment and whatever stops; keys, thresholds, expiry."""

from __future__ import annotations

import multiprocessing
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.hub.errors import HubError, StorageError
from cloud.hub.repository import Keys, Repository
from cloud.hub.repository.releases import Releases
from cloud.hub.repository.repository import Signing
from cloud.hub.repository.status import status
from cloud.hub.storage import storage_at
from lite_runtime import bundle
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Graph, Value
from lite_runtime.updates.delta import rebuild
from tests.cloud.hub.world import DAY, World, bundle_at


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.add("1.0", 1, 2)
    made.releases.promote("keys", "1.0", "stable")
    return made


def seen(world: World, name: str = "device") -> Any:
    """A device that has just brought its metadata up to date."""
    device = world.device(world.files(), name)
    device.refresh()
    return device


# -- releases ----------------------------------------------------------------------------------------------------------


def test_versions_share_pieces(world: World) -> None:
    before = set(world.storage.names("pieces/"))
    made = world.add("2.0", 1, 3)
    assert 0 < made.shared < made.pieces and 40_000 <= made.saved < made.size
    assert len(set(world.storage.names("pieces/")) - before) == made.pieces - made.shared
    content = b"".join(world.releases.content(made.release.files["model.mslite"]))
    assert content == world.bundle(1, 3).read_bytes()
    assert world.releases.versions("keys") == ["1.0", "2.0"] and world.releases.applications() == ["keys", "other"]
    assert seen(world).release("keys", "2.0") == made.release == world.releases.release("keys", "2.0")


def test_a_version_is_never_changed(world: World) -> None:
    before = sorted(world.storage.names("metadata/"))
    again = world.add("1.0", 1, 2)
    assert again.pieces == again.shared and sorted(world.storage.names("metadata/")) == before
    with pytest.raises(HubError, match="exists with other content"):
        world.add("1.0", 1, 3)


def test_what_cannot_be_added(world: World, tmp_path: Path) -> None:
    before = sorted(world.storage.names())
    (tmp_path / "text").write_text("no bundle")
    one = world.bundle(1)
    for match, call in (
        ("expected a bundle", lambda: world.releases.add("keys", "2.0", {"m": tmp_path / "text"})),
        ("there is no application 'none'", lambda: world.releases.add("none", "2.0", {"m": one})),
        ("another version than 'channels'", lambda: world.releases.add("keys", "channels", {"m": one})),
        ("no application named", lambda: world.releases.add("deltas", "1.0", {"m": one})),
        ("NAME=FILE", lambda: world.releases.add("keys", "2.0", {"../m": one})),
        ("at least one file", lambda: world.releases.add("keys", "2.0", {})),
        ("no version '9'", lambda: world.releases.promote("keys", "9", "stable")),
        ("does not have", lambda: world.releases.promote("keys", "1.0", "beta", withdraw=True)),
        ("is in stable", lambda: world.releases.remove("keys", "1.0")),
        ("'keys' exists", lambda: world.repository.delegate("keys")),
        ("other than", lambda: world.repository.delegate("root")),
        ("no role 'none'", lambda: world.repository.rotate("none")),
        ("has the keys", lambda: world.repository.rotate("root", revoke=["none"])),
        ("already", lambda: world.repository.init()),
        ("nothing waits", world.repository.sign),
    ):  # fmt: skip
        with pytest.raises(MsedgeError, match=match):
            call()
    assert [name for name in sorted(world.storage.names()) if name not in before] == []


def test_channels(world: World) -> None:
    world.add("2.0", 1, 3)
    now, _ = world.releases.promote("keys", "2.0", "stable")
    assert now.versions == ("1.0", "2.0") and now.serial == 2
    assert world.releases.promote("keys", "2.0", "stable")[0].serial == 2  # nothing changes
    now, _ = world.releases.promote("keys", "1.0", "stable")
    assert now.versions == ("2.0", "1.0")  # the newest is last
    now, _ = world.releases.promote("keys", "2.0", "stable", withdraw=True)
    assert seen(world).channel("keys", "stable") == now == world.releases.channels("keys")["stable"]
    assert now.versions == ("1.0",) and now.serial == 4


def test_deltas(world: World, tmp_path: Path) -> None:
    (tmp_path / "delta").write_bytes(b"from a file")
    a, b = "a" * 64, "b" * 64
    world.releases.put_deltas({(a, b): tmp_path / "delta", (b, a): b"bytes"})
    found = seen(world).delta(a, b)
    assert found is not None and found[0] == 11
    assert world.storage.read(f"targets/deltas/{a}/{found[1]}.{b}") == b"from a file"
    assert world.releases.deltas().keys() == {(a, b), (b, a)}


def test_pruning(world: World) -> None:
    world.add("2.0", 1, 3)
    files = {v: world.releases.release("keys", v).files["model.mslite"] for v in ("1.0", "2.0")}
    digest = [files[v].sha256 for v in ("1.0", "2.0")]
    world.releases.put_deltas({(digest[0], digest[1]): b"d", (digest[1], digest[0]): b"e"})
    device = seen(world)
    world.releases.promote("keys", "2.0", "stable")
    world.releases.promote("keys", "1.0", "stable", withdraw=True)
    world.releases.remove("keys", "1.0")
    assert world.releases.prune(3600.0).files == ()  # all is young
    planned = world.releases.prune(0.0, dry=True)
    before = set(world.storage.names())
    done = world.releases.prune(0.0)
    gone = before - set(world.storage.names())
    assert set(done.files) == gone >= set(planned.files) and done.size > 40_000
    kept = {piece.sha256 for piece in files["2.0"].pieces}
    assert {name.removeprefix("pieces/") for name in world.storage.names("pieces/")} == kept
    assert world.releases.deltas() == {} and not list(world.storage.names("targets/deltas"))
    assert world.storage.size("metadata/1.root.json")
    device = world.device(world.files())
    device.refresh()
    assert device.release("keys", "2.0") and status(world.repository, content=True).problems == ()
    assert seen(world, "a new device").channel("keys", "stable").versions == ("2.0",)


def test_a_prune_leaves_what_devices_see(world: World, tmp_path: Path) -> None:
    """A team has taken a version back, or an admin without keys cleans up: the hub did not publish that yet."""
    world.add("2.0", 1, 3)
    files = [world.releases.release("keys", version).files["model.mslite"].sha256 for version in ("1.0", "2.0")]
    world.releases.put_deltas({(files[0], files[1]): b"d"})
    team = Releases(Repository(world.storage, Keys([tmp_path / "keys" / "applications"]), lambda: world.now))
    assert team.promote("keys", "1.0", "stable", withdraw=True)[1].waiting
    assert team.remove("keys", "1.0").waiting
    Releases(Repository(world.storage, Keys(), lambda: world.now)).prune(0.0)
    device = seen(world)
    assert device.channel("keys", "stable").versions == ("1.0",)
    for version in ("1.0", "2.0"):
        assert b"".join(world.releases.content(device.release("keys", version).files["model.mslite"]))
    offered = device.delta(files[0], files[1])
    assert offered is not None and world.storage.read(f"targets/deltas/{files[0]}/{offered[1]}.{files[1]}") == b"d"
    world.repository.publish()
    gone = world.releases.prune(0.0).files
    assert any(name.startswith("pieces/") for name in gone) and any("deltas" in name for name in gone)
    assert status(world.repository, content=True).problems == ()


def test_pieces_that_a_prune_deleted_meanwhile_are_stored_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Repository.draft

    def pruned(self: Repository) -> Any:
        monkeypatch.undo()
        world.releases.prune(0.0)
        return real(self)

    monkeypatch.setattr(Repository, "draft", pruned)
    world.add("2.0", 8, 9)
    assert status(world.repository, content=True).problems == ()


# -- keys --------------------------------------------------------------------------------------------------------------


def test_private_keys_are_private(world: World) -> None:
    found = {path.relative_to(world.folder / "keys").as_posix(): path for path in world.folder.rglob("*.key")}
    assert {name.partition("/")[0] for name in found} == {"offline", "online", "applications"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in found.values()} == {0o600}
    assert {stat.S_IMODE((world.folder / "keys" / each).stat().st_mode) for each in ("offline", "online")} == {0o700}
    (world.folder / "keys/online/timestamp-1.key").chmod(0o640)
    with pytest.raises(HubError, match="chmod 600"):
        Repository(world.storage, Keys([world.folder / "keys"]), lambda: world.now + 2 * DAY).publish()


@pytest.mark.parametrize("word", [b"hunter2", "größer".encode()])
def test_encrypted_keys(tmp_path: Path, word: bytes) -> None:
    storage = storage_at(tmp_path / "repository")
    Repository(storage, Keys([tmp_path / "keys"], lambda path: word)).init(applications=["keys"])
    assert all(b"ENCRYPTED" in path.read_bytes() for path in tmp_path.rglob("*.key"))
    for given, match in ((None, "--passphrase"), (b"wrong", "passphrase is wrong")):
        with pytest.raises(HubError, match=match):
            Repository(storage, Keys([tmp_path / "keys"], lambda path, given=given: given)).rotate("root")
    said: list[str] = []

    def asked(path: str) -> bytes:
        said.append(path)
        return word

    assert not Repository(storage, Keys([tmp_path / "keys"], asked)).rotate("root").waiting
    assert len(said) == 1


def test_two_of_three_people(tmp_path: Path) -> None:
    """Each has a folder of keys; a change waits until two have signed, and devices see nothing of it before."""
    world = World(tmp_path, signing={"root": Signing(3, 2)})
    offline = tmp_path / "keys" / "offline"
    people = []
    for number in (1, 2, 3):
        people.append(tmp_path / f"person {number}")
        people[-1].mkdir()
        for kind in ("key", "pub"):
            (offline / f"root-{number}.{kind}").rename(people[-1] / f"root-{number}.{kind}")
    device = seen(world)
    hub = Repository(world.storage, Keys([tmp_path / "keys" / "online"]), lambda: world.now)
    one = Repository(world.storage, Keys([tmp_path / "keys", people[0]]), lambda: world.now)
    outcome = one.rotate("timestamp")
    assert outcome.stored == {} and "1 of 2 signatures; 1 more of root-2, root-3" in outcome.waiting["root"]
    before = status(world.repository)
    assert "root" in before.waiting and [each.version for each in before.roles if each.role == "root"] == [1]
    assert not hub.publish().waiting  # what the hub does from time to time goes on
    seen(world)
    again = Repository(world.storage, Keys([people[0]]), lambda: world.now).sign()
    assert "root" in again.waiting  # the same person twice is one
    done = Repository(world.storage, Keys([people[2], tmp_path / "keys"]), lambda: world.now).sign()
    assert not done.waiting and done.stored.keys() >= {"root", "timestamp"}
    assert not list(world.storage.names("staged/"))
    device.refresh()
    seen(world)
    assert not status(world.repository).waiting
    new = Repository(world.storage, Keys([people[1], tmp_path / "keys"]), lambda: world.now)
    assert new.rotate("targets").waiting and new.discard()
    assert not status(world.repository).waiting


def test_an_owner_without_the_hubs_keys(world: World, tmp_path: Path) -> None:
    """A team has the key of its application alone; the hub publishes what they sign."""
    team = Repository(world.storage, Keys([tmp_path / "keys" / "applications"]), lambda: world.now)
    made = Releases(team).add("keys", "2.0", {"model.mslite": world.bundle(3)})
    assert made.outcome.stored == {"keys": 4} and "snapshot" in made.outcome.waiting
    assert status(world.repository).waiting.keys() == {"keys"}
    assert seen(world).channel("keys", "stable").versions == ("1.0",)
    Releases(team).promote("keys", "2.0", "stable")
    hub = Repository(world.storage, Keys([tmp_path / "keys" / "online"]), lambda: world.now)
    assert hub.publish().stored.keys() == {"snapshot", "timestamp"}
    assert seen(world).channel("keys", "stable").versions == ("1.0", "2.0")
    with_no_key = Releases(hub).add("keys", "3.0", {"model.mslite": world.bundle(4)})
    assert with_no_key.outcome.stored == {} and "keys" in with_no_key.outcome.waiting
    assert team.sign().waiting and not hub.publish().waiting
    assert seen(world).release("keys", "3.0")


def test_a_team_with_a_key_of_its_own(world: World, tmp_path: Path) -> None:
    mine = Keys([tmp_path / "mine"])
    mine.make("laptop")
    outcome = world.repository.delegate("new", [tmp_path / "mine" / "laptop.pub"])
    assert outcome.waiting.keys() == {"new"}
    outcome = Repository(world.storage, Keys([tmp_path / "mine", tmp_path / "keys"]), lambda: world.now).sign()
    assert not outcome.waiting
    both = Repository(world.storage, Keys([tmp_path / "mine", tmp_path / "keys" / "online"]), lambda: world.now)
    Releases(both).add("new", "1.0", {"model.mslite": world.bundle(5)})
    assert seen(world).release("new", "1.0")
    assert Releases(both).add("keys", "2.0", {"model.mslite": world.bundle(5)}).outcome.waiting.keys() == {"keys"}


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp", "deltas", "keys"])
def test_rotation(world: World, role: str) -> None:
    """Both a device of before and a new one follow, and the old key counts no more."""
    device = seen(world, "old")
    old = next(iter(world.folder.glob(f"keys/*/{role}-1.key")))
    world.repository.rotate(role)
    device = world.device(world.files(), "old")
    device.refresh()
    assert device.release("keys", "1.0") and seen(world, "new").release("keys", "1.0")
    states = {each.role: each for each in status(world.repository).roles}
    assert states[role].keys == (f"{role}-2",)
    old.unlink()
    world.now += DAY
    world.repository.renew(1000)
    assert seen(world, "old").release("keys", "1.0")
    lone = Repository(world.storage, Keys(), lambda: world.now)
    assert role in ("snapshot", "timestamp") or role in lone.renew(1000).waiting
    lone.discard()


@pytest.mark.parametrize("role", ["root", "targets", "snapshot", "timestamp"])
def test_rotation_without_the_old_key(world: World, role: str) -> None:
    """A key that is lost. Without the root's nothing can be done: that is why it has several."""
    seen(world, "old")
    for path in world.folder.glob(f"keys/*/{role}-1.key"):
        path.unlink()
    outcome = Repository(world.storage, Keys([world.folder / "keys"]), lambda: world.now).rotate(role)
    assert outcome.waiting.keys() == ({"root"} if role == "root" else set())
    assert seen(world, "old").release("keys", "1.0") and seen(world, "new").release("keys", "1.0")


def test_thresholds(world: World) -> None:
    world.repository.rotate("keys", threshold=1)
    with pytest.raises(HubError, match="threshold from 1 to its 1 keys, got 2"):
        world.repository.rotate("keys", threshold=2)
    with pytest.raises(HubError, match="names of root"):
        world.repository.init({"none": Signing()})


# -- crashes -----------------------------------------------------------------------------------------------------------


class Stopping:
    """A storage that is killed at the n-th change."""

    def __init__(self, inner: Any, changes: int) -> None:
        self.inner, self.left = inner, changes

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name not in ("write", "create", "replace", "delete"):
            return found

        def counted(*args: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            return found(*args)

        return counted


CHANGES: dict[str, Callable[[World, Repository], Any]] = {
    "add": lambda world, repository: Releases(repository).add("keys", "2.0", {"model.mslite": world.bundle(1, 3)}),
    "promote": lambda world, repository: Releases(repository).promote("keys", "1.0", "beta"),
    "withdraw": lambda world, repository: Releases(repository).promote("keys", "1.0", "stable", withdraw=True),
    "deltas": lambda world, repository: Releases(repository).put_deltas({("a" * 64, "b" * 64): b"delta"}),
    "delegate": lambda world, repository: repository.delegate("third"),
    "renew": lambda world, repository: repository.renew(1000),
    "prune": lambda world, repository: Releases(repository).prune(0.0),
    **{
        f"rotate {role}": (lambda world, repository, role=role: repository.rotate(role))
        for role in ("root", "targets", "snapshot", "timestamp", "deltas", "keys")
    },
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_crash_at_any_write(world: World, change: str) -> None:
    """Devices of before and new ones verify what is there; the next command goes on."""
    world.add("1.5", 1, 2, 4)
    world.releases.remove("keys", "1.5")
    first = seen(world, "old").folder
    start = {name: world.storage.read(name) for name in world.storage.names()}
    changes = 0
    while True:
        for name in list(world.storage.names()):
            world.storage.delete(name)
        for name, data in start.items():
            world.storage.replace(name, data)
        stopping = Stopping(world.storage, changes)
        repository = Repository(stopping, world.keys, lambda: world.now)  # type: ignore[arg-type]
        try:
            CHANGES[change](world, repository)
        except KeyboardInterrupt:
            pass
        else:
            break
        files = world.files()
        device = world.device(files, "new")
        _forget(device.folder)
        device.refresh()
        assert device.release("keys", "1.0")
        old = world.device(files, f"old {changes}")
        _copied(first, old.folder)
        old.refresh()
        assert old.release("keys", "1.0")
        world.repository.publish()
        assert not status(world.repository, within=0).problems
        world.add("3.0", 7)
        old = world.device(world.files(), f"old {changes}")
        old.refresh()
        assert old.release("keys", "3.0") and old.release("keys", "1.0")
        changes += 1
    assert changes >= 1


def _forget(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


def _copied(source: Path, target: Path) -> None:
    for path in source.rglob("*"):
        if path.is_file():
            made = target / path.relative_to(source)
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_bytes(path.read_bytes())


def test_a_crash_while_it_is_made(tmp_path: Path) -> None:
    inner = storage_at(tmp_path / "repository")
    for changes in range(20):
        stopping = Stopping(inner, changes)
        try:
            Repository(stopping, Keys([tmp_path / "keys"])).init(applications=["keys"])  # type: ignore[arg-type]
        except KeyboardInterrupt:
            with pytest.raises(HubError, match="msedge hub init"):
                status(Repository(inner))
        else:
            break
    assert not status(Repository(inner)).problems


# -- several at once ---------------------------------------------------------------------------------------------------


def _add_some(folder: Path, number: int) -> None:
    releases = Releases(Repository(storage_at(folder / "repository"), Keys([folder / "keys"])))
    for count in range(4):
        path = bundle_at(folder / f"{number}-{count}.mslite", number, count)
        releases.add("keys", f"{number}.{count}", {"model.mslite": path})
        releases.promote("keys", f"{number}.{count}", "stable")


def test_processes_at_once(tmp_path: Path) -> None:
    storage = storage_at(tmp_path / "repository")
    Repository(storage, Keys([tmp_path / "keys"])).init(applications=["keys"])
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_add_some, args=(tmp_path, number)) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    releases = Releases(Repository(storage))
    assert len(releases.versions("keys")) == 12 == len(releases.channels("keys")["stable"].versions)
    assert not status(releases.repository, within=0, content=True).problems


def test_without_the_lock_only_one_of_two_wins(world: World) -> None:
    """A lock in a bucket can be lost; versions are created, never replaced."""
    with world.repository.draft() as one:
        one.edit("keys")
        inner = Repository(_Unlocked(world.storage), world.keys, lambda: world.now)  # type: ignore[arg-type]
        inner.renew(1000)
        with pytest.raises(HubError, match=r"another process made metadata/4\.keys\.json"):
            one.store()
    assert seen(world).release("keys", "1.0")


class _Unlocked:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        import contextlib

        return contextlib.nullcontext if name == "lock" else getattr(self.inner, name)


# -- time and state ----------------------------------------------------------------------------------------------------


def test_what_expires_is_reported_and_renewed(tmp_path: Path) -> None:
    world = World(tmp_path, days={"timestamp": 2, "root": 100})
    assert status(world.repository).expiring == ()
    assert set(status(world.repository, within=15).expiring) == {"snapshot", "timestamp"}
    world.now += 1.6 * DAY
    assert status(world.repository).expiring == ("timestamp",)
    assert world.repository.publish().stored.keys() == {"timestamp"}
    assert world.repository.publish().stored == {} and status(world.repository).expiring == ()
    world.now += 71 * DAY
    assert {"root", "snapshot", "timestamp", "deltas"} == set(status(world.repository).expiring)
    assert world.repository.publish().stored.keys() == {"deltas", "snapshot", "timestamp"}
    assert world.repository.renew(30).stored.keys() == {"root"}
    assert status(world.repository).expiring == ()
    root = next(each for each in status(world.repository).roles if each.role == "root")
    assert root.version == 2 and 99.9 < root.left <= 100


def test_damage_is_reported(world: World) -> None:
    assert status(world.repository, content=True).problems == ()
    name = max(world.storage.names("pieces/"), key=lambda each: world.storage.size(each) or 0)
    data = world.storage.read(name)
    world.storage.replace(name, data[:-1] + bytes([data[-1] ^ 1]))
    assert status(world.repository).problems == ()
    assert "is damaged" in str(status(world.repository, content=True).problems)
    world.storage.replace(name, data[:-1])
    assert "1 pieces of 'model.mslite' are missing or damaged" in str(status(world.repository).problems)
    with pytest.raises(StorageError, match="it was damaged: delete it"):
        world.add("1.0", 1, 2)
    world.storage.delete(name)
    world.add("1.0", 1, 2)
    assert status(world.repository, content=True).problems == ()
    world.storage.replace("metadata/3.keys.json", b"{")
    with pytest.raises(HubError, match="damaged"):
        status(world.repository)
    world.storage.delete("metadata/3.keys.json")
    with pytest.raises(HubError, match="the newest version of keys is lost"):
        world.add("2.0", 4)


def test_no_repository(tmp_path: Path) -> None:
    with pytest.raises(HubError, match="msedge hub init"):
        Releases(Repository(storage_at(tmp_path))).add("keys", "1.0", {"m": bundle_at(tmp_path / "m", 1)})


def test_deltas_are_made_where_they_save_something(world: World) -> None:
    """From what devices have to what they get; the hub's keys are enough, and a second time makes nothing."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-99, 99, 300_000, np.int8)

    def bundle_with(name: str, array: Any) -> Path:
        path = world.folder / name
        bundle.write(path, {"run": Graph((), (Value("w", "int8", array.shape),), (), {"w": array}, "constants")})
        return path

    near = weights + (rng.random(len(weights)) < 0.01).astype(np.int8)
    for version, array in (("2.0", weights), ("2.1", near), ("3.0", rng.integers(-99, 99, 300_000, np.int8))):
        world.releases.add("keys", version, {"model.mslite": bundle_with(version, array)})
        world.releases.promote("keys", version, "stable")
    hub = Releases(Repository(world.storage, Keys([world.folder / "keys" / "online"]), lambda: world.now))
    made = hub.make_deltas("keys", "2.1", ["2.0"])
    assert not made.outcome.waiting and len(made.deltas) == 1
    files = [world.releases.release("keys", version).files["model.mslite"] for version in ("2.0", "2.1")]
    offered = seen(world).delta(files[0].sha256, files[1].sha256)
    assert offered is not None and offered[0] == made.deltas[files[0].sha256, files[1].sha256] < 60_000
    data = world.storage.read(f"targets/deltas/{files[0].sha256}/{offered[1]}.{files[1].sha256}")
    rebuild(world.folder / "2.0", data, world.folder / "made", size=files[1].size, sha256=files[1].sha256)
    assert (world.folder / "made").read_bytes() == (world.folder / "2.1").read_bytes()
    again = hub.make_deltas("keys", "2.1")
    assert (files[0].sha256, files[1].sha256) not in again.deltas and len(again.deltas) + again.useless == 2
    assert hub.make_deltas("keys", "2.1").deltas == {}
    with pytest.raises(HubError, match="has no version"):
        hub.make_deltas("keys", "9.0")
