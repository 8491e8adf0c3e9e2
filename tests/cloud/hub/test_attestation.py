"""What is attested of a release: in-toto's statements, read and verified here by other means than they were made."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from cloud.hub.errors import HubError
from cloud.hub.repository import Keys, Repository
from cloud.hub.repository.attestation import opened, sealed, statement
from cloud.hub.repository.releases import Releases
from cloud.hub.repository.status import status
from lite_runtime.updates.places import attestation_target, file_of_target
from tests.cloud.hub.world import World, bundle_at


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    source = bundle_at(tmp_path / "m.mslite", 1, source="ab" * 32)
    lineage = {"model.source": "ab" * 32, "model.run": "r-7", "model.note": "ours", "data": "2026-11"}
    added = made.releases.add("keys", "1.0", {"model": source, "other": made.bundle(2)}, lineage=lineage)
    assert added.attested == ("keys-1",)
    return made


def lines(world: World, version: str = "1.0") -> list[dict[str, Any]]:
    return [json.loads(line) for line in world.releases.envelopes("keys", version).splitlines()]


def verified(world: World, envelope: dict[str, Any], key: str = "keys-1") -> dict[str, Any]:
    """By DSSE's own definition (https://github.com/secure-systems-lab/dsse), with the public key from its file."""
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    encoded = b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)
    public: Any = load_pem_public_key(
        b"-----BEGIN" + next(world.folder.glob(f"keys/*/{key}.pub")).read_bytes().partition(b"-----BEGIN")[2]
    )
    (signature,) = envelope["signatures"]
    public.verify(base64.b64decode(signature["sig"]), encoded)
    found: dict[str, Any] = json.loads(payload)
    return found


def test_each_bundle_has_a_statement_of_where_it_comes_from(world: World) -> None:
    release = world.releases.release("keys", "1.0")
    model, other = (verified(world, line) for line in lines(world))
    assert (model["_type"], model["predicateType"]) == (
        "https://in-toto.io/Statement/v1", "https://slsa.dev/provenance/v1",
    )  # fmt: skip
    assert model["subject"] == [
        {"name": "model", "digest": {"sha256": release.files["model"].sha256},
         "annotations": {"bundle": release.files["model"].digest}}
    ]  # fmt: skip
    asked = model["predicate"]["buildDefinition"]
    assert asked["resolvedDependencies"] == [
        {"name": "model", "digest": {"blake2b_256": "ab" * 32}}, {"name": "training", "uri": "msedge:run/r-7"},
    ]  # fmt: skip
    assert asked["externalParameters"]["lineage"] == {"model.note": "ours", "data": "2026-11"}
    assert other["subject"][0]["name"] == "other" and not other["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert model["predicate"]["runDetails"]["builder"]["id"] == "msedge:owner/keys"
    made = world.releases.add("keys", "2.0", {"model": world.bundle(3)}, builder="https://ci.example.org/release")
    assert made.attested
    (one,) = lines(world, "2.0")
    assert verified(world, one)["predicate"]["runDetails"]["builder"]["id"] == "https://ci.example.org/release"


def test_in_totos_own_classes_read_it(world: World) -> None:
    """Strictly: a field that their definitions do not have is an error."""
    pytest.importorskip("in_toto_attestation")
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement_pb2
    from in_toto_attestation.v1.statement import Statement

    for line in lines(world):
        said = verified(world, line)
        Statement.copy_from_pb(json_format.ParseDict(said, statement_pb2.Statement())).validate()
        read = json_format.ParseDict(said["predicate"], provenance_pb2.Provenance())
        assert read.build_definition.build_type == "msedge:conversion/v1"
        assert read.run_details.builder.id == "msedge:owner/keys"
        with pytest.raises(json_format.ParseError):
            json_format.ParseDict({**said["predicate"], "buildDefinitoin": {}}, provenance_pb2.Provenance())


def test_a_changed_envelope_does_not_verify(world: World) -> None:
    one, _ = lines(world)
    said = json.loads(base64.b64decode(one["payload"]))
    said["subject"][0]["digest"]["sha256"] = "0" * 64
    with pytest.raises(InvalidSignature):
        verified(world, {**one, "payload": base64.b64encode(json.dumps(said).encode()).decode()})


def test_it_is_a_target_of_the_application_and_goes_with_its_release(world: World) -> None:
    """So the repository's signatures are on it too, a prune leaves it, and a version that is removed leaves none."""
    world.releases.prune(0.0)
    assert len(lines(world)) == 2
    device = world.device(world.files())
    device.refresh()
    assert device.target(attestation_target("keys", "1.0")) == world.releases.envelopes("keys", "1.0")
    assert world.releases.versions("keys") == ["1.0"] and world.releases.channels("keys") == {}
    world.releases.remove("keys", "1.0")
    with pytest.raises(HubError, match="is not attested"):
        world.releases.envelopes("keys", "1.0")
    assert any("intoto" in name for name in world.releases.prune(0.0).files)


def test_who_has_no_key_of_the_application_attests_nothing(world: World, tmp_path: Path) -> None:
    """The team does so afterwards; a second time changes nothing."""
    hub = Releases(Repository(world.storage, Keys([tmp_path / "keys" / "online"]), lambda: world.now))
    files = {"model": world.bundle(4)}
    assert hub.add("keys", "2.0", files).attested == ()
    world.repository.sign()
    assert status(world.repository).applications["keys"]["attested"] == {"1.0": ["keys-1"], "2.0": []}
    assert world.releases.attestations("keys", "2.0") == []
    before = world.releases.release("keys", "2.0")
    assert world.releases.add("keys", "2.0", files).attested == ("keys-1",)
    assert world.releases.release("keys", "2.0") == before
    again = world.releases.add("keys", "2.0", files)
    assert again.attested == ("keys-1",) and again.outcome.stored == {}
    assert status(world.repository).applications["keys"]["attested"]["2.0"] == ["keys-1"]


def test_a_key_that_was_exchanged_does_not_count(world: World) -> None:
    world.repository.rotate("keys")
    assert [one.signed for one in world.releases.attestations("keys", "1.0")] == [(), ()]
    assert status(world.repository).applications["keys"]["attested"] == {"1.0": []}
    files = {"model": world.folder / "m.mslite", "other": world.bundle(2)}
    lineage = dict(world.releases.release("keys", "1.0").lineage)
    assert world.releases.add("keys", "1.0", files, lineage=lineage).attested == ("keys-2",)
    assert verified(world, lines(world)[0], "keys-2")["subject"][0]["name"] == "model"


WRONG: dict[str, Any] = {
    "no JSON": lambda said, line: b"x",
    "no envelope": lambda said, line: b"{}",
    "no statement": lambda said, line: json.dumps({**line, "payload": base64.b64encode(b"{}").decode()}).encode(),
    "an array": lambda said, line: json.dumps({**line, "payload": base64.b64encode(b"[]").decode()}).encode(),
    "signatures that are none": lambda said, line: json.dumps({**line, "signatures": [{"keyid": 1}]}).encode(),
    "another type": lambda said, line: json.dumps({**line, "payloadType": "text/plain"}).encode(),
    "nothing": lambda said, line: b"",
    "one of two": lambda said, line: json.dumps(line).encode(),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_attestation_is_refused(case: str, world: World) -> None:
    release = world.releases.release("keys", "1.0")
    line = lines(world)[0]
    with pytest.raises(HubError, match="attestation"):
        opened(WRONG[case](None, line), release, [])


def test_a_statement_about_other_bytes_is_refused(world: World) -> None:
    """Signed by the right key, of another version."""
    release = world.releases.release("keys", "1.0")
    other = release._replace(files={name: file._replace(sha256="0" * 64) for name, file in release.files.items()})
    signer = world.keys.signer(next(iter(world.repository.shelf().delegator("keys").get_delegated_role("keys").keyids)))
    assert signer is not None
    raw = sealed([statement(other, name, {}) for name in other.files], [signer])
    with pytest.raises(HubError, match="expected a statement about 'model'"):
        opened(raw, release, [signer.public_key])


def test_a_damaged_attestation_is_a_problem_and_is_made_anew(world: World) -> None:
    target = attestation_target("keys", "1.0")
    found = world.repository.shelf().role("keys").signed.targets[target]  # type: ignore[union-attr]
    path = world.folder / "repository" / file_of_target(target, found.hashes["sha256"])
    path.write_bytes(b"damaged")
    (problem,) = status(world.repository).problems
    assert "intoto.jsonl is damaged" in problem
    path.unlink()
    files = {"model": world.folder / "m.mslite", "other": world.bundle(2)}
    world.releases.add("keys", "1.0", files, lineage=dict(world.releases.release("keys", "1.0").lineage))
    assert status(world.repository).problems == () and len(lines(world)) == 2
