"""A gateway that serves only what trusted keys have signed, from whatever source, and what it shows of that."""

from __future__ import annotations

import json
import time
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.sources.publishing import push
from edge.gateway.sources.trust import Trust
from lite_runtime import bundle
from lite_runtime.bundle import signing
from lite_runtime.bundle.signatures import signatures_of
from lite_runtime.bundle.signing import with_signatures
from tests.edge.gateway.ensembles.parts import document, put, step
from tests.edge.gateway.live import Live, live
from tests.edge.gateway.models.conftest import tiny
from tests.edge.gateway.sources.oci_servers import Spec
from tests.waiting import until

DAY = 86_400.0


def key(folder: Path, name: str, expires: float = float("inf")) -> tuple[str, str]:
    """New private and public keys in files."""
    secret, shown = signing.new_key(name, expires)
    paths = folder / f"{name}.key", folder / f"{name}.pub"
    for path, content in zip(paths, (secret, shown), strict=True):
        path.write_bytes(content)
    return str(paths[0]), str(paths[1])


def status(there: Live) -> dict[str, Any]:
    with urllib.request.urlopen(f"{there.address}/status.json", timeout=60) as reply:
        found: dict[str, Any] = json.load(reply)
        return found


def states(there: Live) -> dict[tuple[str, str], tuple[str, str]]:
    """By model and version, the state and the reason."""
    rows = there.gateway.repository.index()
    return {(row["name"], row.get("version", "")): (row["state"], row["reason"]) for row in rows}


def place(root: Path, name: str, data: bytes) -> None:
    (root / f".{name}").write_bytes(data)
    (root / f".{name}").rename(root / f"{name}.mslite")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def test_what_is_served_and_what_is_not(root: Path, tmp_path: Path) -> None:
    private, public = key(tmp_path, "release", time.time() + 300 * DAY)
    stranger, _ = key(tmp_path, "stranger")
    plain = tiny(2.0)
    signed = signing.signed(plain, private)
    moved = with_signatures(tiny(3.0), signatures_of(bundle.opened(signed)))
    for name, data in (
        ("good", signed), ("unsigned", plain), ("stranger", signing.signed(plain, stranger)), ("moved", moved),
        ("mine", signing.signed(plain, private, model="mine", version=1)),
        ("other", signing.signed(plain, private, model="mine")), ("tampered", signed[:-1] + bytes([signed[-1] ^ 1])),
    ):  # fmt: skip
        place(root, name, data)
    with live(root, trust__keys=public, repository__poll=0.05) as there:
        found = {name: state for (name, _), state in states(there).items()}
        assert {name for name, (state, _) in found.items() if state == "READY"} == {"good", "mine"}
        for name, reason in (
            ("unsigned", "without a signature"), ("stranger", "not trusted"), ("moved", "not of this bundle"),
            ("other", "for 'mine' alone"), ("tampered", "BLAKE2b"),
        ):  # fmt: skip
            assert reason in found[name][1], found[name]
        shown = status(there)
        assert {m["name"]: m["signer"] for m in shown["models"] if m["state"] == "READY"} == {
            "good": "release", "mine": "release",
        }  # fmt: skip
        assert [k["name"] for k in shown["keys"]] == ["release"]
        metrics = there.gateway.metrics("")[0].decode()
        assert "msedge_untrusted_total 4" in metrics
        assert 'msedge_trusted_key_expiry_timestamp_seconds{key="release"}' in metrics
        # A served model that is replaced by an unsigned one stays.
        place(root, "good", tiny(5.0))
        until(lambda: "without a signature" in states(there)["good", "1"][1])
        assert states(there)["good", "1"][0] == "READY"
        # Files of a load request are bundles like any other.
        body = {"parameters": {"file:1/model.mslite": b64encode(plain).decode()}}
        with pytest.raises(GatewayError, match="without a signature") as caught:
            there.call(there.gateway.load("sent", body))
        assert caught.value.status == 400
        body = {"parameters": {"file:1/model.mslite": b64encode(signed).decode()}}
        there.call(there.gateway.load("sent", body))
    log = there.log.getvalue()
    assert "version refused" in log and "without a signature" in log and "signer=release" in log


def test_ensembles_are_not_signed_and_not_served(root: Path, tmp_path: Path) -> None:
    """Also those of models that are: an ensemble of one model would serve it under another name."""
    private, public = key(tmp_path, "release")
    data = signing.signed(tiny(2.0), private, model="mine")
    place(root, "mine", data)
    port = bundle.read(data).signatures["predict"]
    names = [{end.name: end.name} for end in (*port.inputs, *port.outputs)]
    graph = document([*names[0]], [*names[1]], step("mine", *names))
    put(root / "other" / "ensemble.json", graph)
    with live(root) as there:
        assert states(there)["other", "1"] == ("READY", "")
    with live(root, trust__keys=public) as there:
        assert states(there)["mine", "1"][0] == "READY"
        state, reason = states(there)["other", "1"]
        assert state != "READY" and "got an ensemble, which is not signed" in reason
        sent = {"parameters": {"file:1/ensemble.json": b64encode(json.dumps(graph).encode()).decode()}}
        with pytest.raises(GatewayError, match="got an ensemble, which is not signed") as caught:
            there.call(there.gateway.load("sent", sent))
        assert caught.value.status == 400
        there.call(there.gateway.repository.judge())  # tried again when keys change
        assert states(there)["other", "1"][0] != "READY"
        assert "msedge_untrusted_total 3" in there.gateway.metrics("")[0].decode()


def test_keys_are_exchanged_while_serving(root: Path, tmp_path: Path) -> None:
    old, old_public = key(tmp_path, "old")
    new, new_public = key(tmp_path, "new")
    both = signing.signed(signing.signed(tiny(1.0), old), new)
    before, after = signing.signed(tiny(2.0), old), signing.signed(tiny(3.0), new)
    for name, data in (("both", both), ("before", before), ("after", after)):
        place(root, name, data)
    with live(root, trust__keys=(old_public,)) as there:
        assert {name for (name, _), (state, _) in states(there).items() if state == "READY"} == {"both", "before"}
        text = Path(new_public).read_text()
        Path(old_public).write_text("no key")  # a mistake changes nothing
        until(lambda: "trust.keys" in there.log.getvalue())
        assert states(there)["before", "1"][0] == "READY"
        Path(old_public).write_text(text)
        until(lambda: states(there).get(("after", "1"), ("", ""))[0] == "READY")
        until(lambda: states(there).get(("before", "1"), ("", ""))[0] == "UNAVAILABLE")
        assert states(there)["both", "1"][0] == "READY" and "not trusted" in states(there)["before", "1"][1]
    assert "trusted keys have changed" in there.log.getvalue()


def test_a_key_that_expires(root: Path, tmp_path: Path) -> None:
    private, public = key(tmp_path, "old", time.time() - DAY)
    place(root, "late", signing.signed(tiny(1.0), private))
    with live(root, trust__keys=public) as there:
        assert "expired at" in states(there)["late", "1"][1]
        until(lambda: "a trusted key expires" in there.log.getvalue())


def test_a_clock_decides(tmp_path: Path) -> None:
    """What an expired key has signed may go on serving, but is not loaded any more."""
    now = [time.time()]
    private, public = key(tmp_path, "k", now[0] + 3 * DAY)
    trust, signed = Trust([public], lambda: now[0]), signing.signed(tiny(1.0), private)
    assert trust.check(signed, "m", 1) == "k" and [one.name for one in trust.expiring()] == ["k"]
    now[0] += 10 * DAY
    assert trust.holds(signed)
    with pytest.raises(GatewayError, match="expired"):
        trust.check(signed, "m", 1)


def test_a_registry_s_bundles_are_judged_too(tmp_path: Path) -> None:
    """A registry has write access to what it lists; it cannot make the gateway serve what nobody signed."""
    private, public = key(tmp_path, "release")
    path = tmp_path / "m.mslite"
    with Spec().run() as host:
        path.write_bytes(tiny(1.0))
        push(path, f"oci://{host}/team/m:1")
        with live(
            f"oci://{host}/team/m:1", trust__keys=public, repository__poll=0.05,
            repository__cache=str(tmp_path / "cache"),
        ) as there:  # fmt: skip
            until(lambda: "without a signature" in states(there).get(("m", "1"), ("", ""))[1])
            path.write_bytes(signing.signed(tiny(1.0), private))  # the same digest
            push(path, f"oci://{host}/team/m:1")
            until(lambda: states(there)["m", "1"][0] == "READY")
            assert status(there)["models"][0]["signer"] == "release"


@pytest.mark.parametrize(
    ("files", "problem"), [(["none.pub"], "cannot read"), (["a.key"], "public key"), (["a.pub", "b.pub"], "'a' twice")]
)
def test_keys_that_cannot_be_used(tmp_path: Path, files: list[str], problem: str) -> None:
    key(tmp_path, "a")
    (tmp_path / "b.pub").write_bytes(signing.new_key("a")[1])
    with pytest.raises(GatewayError, match=rf"trust\.keys.*{problem}"):
        Trust([str(tmp_path / name) for name in files])
