"""Versions are found, loaded once, replaced, withdrawn and refused."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.personal.heads import GLOBAL, check_device
from federated.server.store import PersonalStore
from lite_runtime import bundle
from tests.edge.gateway.personal.fleet import Fleet, base, made, params


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path, "dense", 3)


def ready(fleet: Fleet, *devices: str) -> list[str]:
    async def all_of_them() -> list[str]:
        return [head.note for head in await asyncio.gather(*map(fleet.heads.ready, devices))]

    return asyncio.run(all_of_them())


def test_a_version_is_loaded_once_for_all_who_wait(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, load = list[str](), fleet.versions.load
    monkeypatch.setattr(fleet.versions, "load", lambda device: (loads.append(device), load(device))[1])
    assert fleet.heads.find("d1") is None
    assert ready(fleet, "d1", "d1", "d1", "d0") == ["version 1"] * 4
    assert sorted(loads) == ["d0", "d1"]
    head = fleet.heads.find("d1")
    assert head is not None and fleet.heads.now("d1") is head
    want = params(fleet.model.bundle, 1)
    for name, array in head.state.items():
        np.testing.assert_allclose(array, want[name], atol=1e-6)


def test_unknown_devices_cause_no_access_to_the_store(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet.versions, "load", None)
    job = fleet.job("nobody")
    assert fleet.heads.find("nobody") is GLOBAL and fleet.heads.admit(job)
    assert (job.device, job.notes, fleet.heads.misses) == ("", {"personal": "global"}, 1)


def test_a_job_is_admitted_after_its_head_is_loaded(fleet: Fleet) -> None:
    job = fleet.job("d2")
    assert not fleet.heads.admit(job)
    ready(fleet, "d2")
    assert fleet.heads.admit(job)
    assert job.device == "d2" and not job.notes


def test_newer_versions_replace_older_ones(fleet: Fleet) -> None:
    held = fleet.model.bundle
    ready(fleet, "d1")
    fleet.store.put("d1", held.digest, params(held, 9), base(held), round=2, consent="serve")
    assert fleet.heads.find("d1") is not None  # not looked yet
    fleet.versions.look()
    assert fleet.heads.find("d1") is None
    assert ready(fleet, "d1") == ["version 2"]
    np.testing.assert_allclose(fleet.heads.now("d1").state["head.weight"], params(held, 9)["head.weight"], atol=1e-6)


def test_a_forgotten_device_starts_again(fleet: Fleet) -> None:
    """Its first version has the number of an older one, which must not be used any more."""
    held = fleet.model.bundle
    ready(fleet, "d1")
    old = fleet.heads.now("d1")
    fleet.store.forget("d1")
    fleet.store.put("d1", held.digest, params(held, 9), base(held), round=2, consent="serve")
    fleet.versions.look()
    assert ready(fleet, "d1") == ["version 1"]
    new = fleet.heads.now("d1")
    assert new.key != old.key  # nor is its slot the old one's
    np.testing.assert_allclose(new.state["head.weight"], params(held, 9)["head.weight"], atol=1e-6)


@pytest.mark.parametrize("consent", ["none", "backup"])
def test_withdrawn_consent_is_respected(fleet: Fleet, consent: str) -> None:
    held = fleet.model.bundle
    ready(fleet, "d1")
    fleet.store.put("d1", held.digest, params(held, 9), base(held), round=2, consent=consent)
    fleet.versions.look()
    assert ready(fleet, "d1") == ["global"]
    assert not fleet.heads.now("d1").state


def test_versions_of_other_models_and_shapes_are_not_served(fleet: Fleet) -> None:
    held = fleet.model.bundle
    fleet.store.put("other", "0" * 64, params(held, 1), base(held), round=1, consent="serve")
    wide = {"head.weight": np.zeros((1, 5), np.float32)}  # what would be broadcast
    fleet.store.put("wide", held.digest, {"head.weight": wide["head.weight"] + 1}, wide, round=1, consent="serve")
    huge = {"head.weight": np.full_like(held.state["head.weight"], 3e38)}
    with np.errstate(over="ignore"):
        less = {"head.weight": -huge["head.weight"]}
        fleet.store.put("huge", held.digest, huge, less, round=1, consent="serve")
    fleet.store.put("strange", held.digest, {"no": np.ones(2)}, {"no": np.zeros(2)}, round=1, consent="serve")
    fleet.versions.look()
    notes = ready(fleet, "other", "wide", "huge", "strange")
    assert notes[0] == "global: version 1 belongs to another model"
    assert notes[1] == "global: version 1 belongs to a model with other shapes"
    assert notes[2] == "global: version 1 contains NaN or infinities"
    assert notes[3] == "version 1"  # which changes nothing that is read
    job = fleet.job("other")
    assert fleet.heads.admit(job)
    assert job.device == "" and job.notes["personal"] == notes[0]


def test_a_broken_store_is_reported_and_not_used(fleet: Fleet, tmp_path: Path) -> None:
    ready(fleet, "d1")
    told = list[str]()
    fleet.versions._tell = lambda event, facts: told.append(event)
    (tmp_path / "personal.sqlite").write_bytes(b"no database" * 500)
    with pytest.raises(GatewayError) as error:
        ready(fleet, "d2")
    assert error.value.status == 503 and error.value.retry_after
    assert str(tmp_path) not in str(error.value)  # clients do not see the server's paths
    for _ in range(2):
        fleet.versions.look()
    assert told == ["a personal version cannot be read", "personal versions cannot be read"]
    with pytest.raises(GatewayError) as error:
        fleet.heads.admit(fleet.job("d1"))
    assert error.value.status == 503 and error.value.retry_after and fleet.versions.problem


def test_the_least_recently_used_heads_are_removed(fleet: Fleet) -> None:
    ready(fleet, "d0")
    one = fleet.heads.nbytes
    assert one == sum(array.nbytes for array in base(bundle.read(made("dense"))).values())
    fleet.heads._memory = 2 * one
    ready(fleet, "d1")
    assert fleet.heads.admit(fleet.job("d0"))
    ready(fleet, "d2")
    assert [fleet.heads.find(device) is not None for device in ("d0", "d1", "d2")] == [True, False, True]
    assert fleet.heads.nbytes == 2 * one and len(fleet.heads) == 2
    assert fleet.heads.now("d1").note == "version 1"


@pytest.mark.parametrize("name", [5, None, "x" * 257, "a\nb", "\0", ["d"]])
def test_invalid_names(name: object) -> None:
    with pytest.raises(GatewayError, match="device") as error:
        check_device(name)
    assert error.value.status == 400


def test_names_are_treated_as_data() -> None:
    for name in ("'; DROP TABLE versions; --", "../../etc/passwd", "ü 7"):
        assert check_device(name) == name


def test_the_store_is_watched(fleet: Fleet) -> None:
    held = fleet.model.bundle
    fleet.versions._refresh = 0.01

    async def until_seen() -> None:
        watch = asyncio.create_task(fleet.versions.watch())
        PersonalStore(fleet.store.path).put("new", held.digest, params(held, 4), base(held), round=1, consent="serve")
        while not fleet.versions.newest.get("new"):
            await asyncio.sleep(0.01)
        watch.cancel()

    asyncio.run(asyncio.wait_for(until_seen(), 300))
