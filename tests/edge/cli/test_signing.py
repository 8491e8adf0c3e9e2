"""`msedge keygen`, `sign`, `inspect --trust` and `push`."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge.cli.app import app
from lite_runtime import bundle
from tests.edge.gateway.models.conftest import tiny
from tests.edge.gateway.sources.oci_servers import PASSWORD, USER, Spec

RUN = CliRunner()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mslite").write_bytes(tiny(2.0))
    return tmp_path


def ran(*words: str, code: int = 0) -> str:
    done = RUN.invoke(app, list(words))
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


def test_from_a_key_to_a_signed_bundle(here: Path) -> None:
    made = json.loads(ran("keygen", "release", "--days", "30", "--json"))
    assert stat.S_IMODE((here / "release.key").stat().st_mode) == 0o600
    assert "expires: 20" in (here / "release.pub").read_text()
    digest = bundle.opened("m.mslite").digest
    assert re.search(r"signed by +nobody", ran("inspect", "m.mslite"))
    told = json.loads(ran("sign", "m.mslite", "--key", "release.key", "--json"))
    assert told["digest"] == digest == bundle.opened("m.mslite").digest
    assert told["signatures"] == [f"ed25519:{made['key'][:16]}"]
    assert "not checked without --trust" in ran("inspect", "m.mslite")
    assert "release (ed25519:" in ran("inspect", "m.mslite", "--trust", "release.pub")
    found = json.loads(ran("inspect", "m.mslite", "--trust", "release.pub", "--json"))
    assert found["signed_by"] == [f"release ({told['signatures'][0]}), valid"]
    ran("keygen", "other")
    assert "not trusted" in ran("inspect", "m.mslite", "--trust", "other.pub", code=1)
    both = ("--trust", "other.pub", "--trust", "release.pub")
    assert "valid" in ran("inspect", "m.mslite", *both)
    ran("sign", "m.mslite", "--remove", "-o", "plain.mslite")
    assert (here / "plain.mslite").read_bytes() == tiny(2.0)
    assert "without a signature" in json.loads(ran("inspect", "plain.mslite", *both, "--json", code=1)
                                               .partition("\n")[2])["error"]["message"]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["keygen", "../x"], 2, "letters"), (["keygen", "there"], 3, "exists"), (["sign", "m.mslite"], 2, "--key FILE"),
        (["sign", "m.mslite", "--key", "there.pub"], 3, "private key"),
        (["sign", "no.mslite", "--remove"], 3, "no.mslite"),
        (["sign", "m.mslite", "--key", "none"], 3, "cannot read"),
        (["sign", "there.key", "--remove"], 3, "not a bundle"),
        (["sign", "m.mslite", "--key", "there.key", "--version", "-1"], 2, "-1"),
        (["push", "m.mslite", "ftp://x"], 3, "oci://"), (["push", "there.key", "oci://h/x:1"], 3, "not a bundle"),
        (["push", "m.mslite", "oci://h/x:1", "--credentials", "none.toml"], 3, "none.toml"),
        (["push", "m.mslite", "oci://h/x:1", "--config", "m.mslite"], 3, "expected TOML"),
    ],
)  # fmt: skip
def test_wrong_usage_is_reported(here: Path, words: list[str], code: int, text: str) -> None:
    ran("keygen", "there")
    assert text in ran(*words, code=code)
    assert (here / "m.mslite").read_bytes() == tiny(2.0)


def test_a_bundle_is_pushed(here: Path) -> None:
    (here / "password").write_text(PASSWORD)
    with Spec("basic").run() as host:
        (here / "registries.toml").write_text(f'["{host}"]\nuser = "{USER}"\npassword_file = "password"\n')
        words = ("push", "m.mslite", f"oci://{host}/team/m:3", "--credentials", "registries.toml")
        told = json.loads(ran(*words, "--json"))
        assert told["digest"] == bundle.opened("m.mslite").digest and told["manifest"].startswith("sha256:")
        assert f"stored m.mslite at oci://{host}/team/m:3" in ran(*words)
        assert "401" in ran(*words[:3], code=3)
