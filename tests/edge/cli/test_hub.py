"""`msedge hub`: from an empty folder to a fleet's repository, with what is refused and what scripts read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from edge.agent.fetching import Folder
from edge.agent.trust import Trust
from edge.cli.app import app
from edge.gateway.sources.cache import Cache
from edge.gateway.sources.credentials import Credentials
from edge.gateway.sources.oci import Oci
from edge.gateway.sources.registry import Registry
from edge.gateway.sources.web import Web
from tests.cloud.hub.world import bundle_at
from tests.edge.gateway.sources.oci_servers import PASSWORD, USER, Spec

RUN = CliRunner()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    bundle_at(tmp_path / "one.mslite", 1, 2, source="a" * 64)
    bundle_at(tmp_path / "two.mslite", 1, 3)
    return tmp_path


def ran(words: str, code: int = 0) -> str:
    done = RUN.invoke(app, ["hub", *words.split()])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    return done.output


def told(words: str, code: int = 0) -> dict[str, object]:
    found: dict[str, object] = json.loads(ran(f"{words} --json", code))
    return found


def device(here: Path) -> Trust:
    made = Trust(here / "device", (here / "repo/metadata/1.root.json").read_bytes(), Folder(here / "repo"))
    made.refresh()
    return made


def test_from_nothing_to_devices(here: Path) -> None:
    assert "devices begin with repo/metadata/1.root.json" in ran("init repo --application digits")
    added = told(
        "add repo digits 1.0.0 model.mslite=one.mslite --lineage data=blake --memory 1000000 --target x86-64-v3"
    )
    assert added["waiting"] == {} and added["shared"] == 0
    assert added["lineage"] == {"data": "blake", "model.mslite.source": "a" * 64}
    assert "stable of digits: 1.0.0" in ran("promote repo digits 1.0.0")
    release = device(here).release("digits", "1.0.0")
    assert release.lineage == added["lineage"] and release.requirements.memory == 1_000_000
    assert release.requirements.targets == ("x86-64-v3",)
    assert told("add repo digits 1.1.0 model.mslite=two.mslite")["shared"]
    assert told("promote repo digits 1.1.0 --channel stable")["versions"] == ["1.0.0", "1.1.0"]
    assert told("promote repo digits 1.1.0 --withdraw")["versions"] == ["1.0.0"]
    for role in ("root", "targets", "snapshot", "timestamp", "deltas", "digits"):
        assert f"exchanged the keys of {role}" in ran(f"rotate repo {role}")
    assert "removed digits 1.1.0" in ran("remove repo digits 1.1.0")
    assert device(here).channel("digits", "stable").versions == ("1.0.0",)
    assert "would delete" in ran("prune repo --older 0 --dry-run") and told("prune repo --older 0")["deleted"]
    shown = ran("status repo --check")
    assert "digits-2" in shown and "digits: versions 1.0.0; stable: 1.0.0" in shown and "problem" not in shown
    assert told("status repo --days 5", code=1)["expiring"] == ["timestamp"]
    assert told("publish repo")["stored"] == {} and told("renew repo --within 400", code=0)["stored"]


def test_status_says_what_is_wrong(here: Path) -> None:
    ran("init repo --application digits --days timestamp=1 --days root=20")
    assert "warning: root expires soon" in ran("status repo", code=1)
    found = told("status repo", code=1)
    assert found["expiring"] == ["root"] and found["problems"] == [] and found["applications"]
    ran("renew repo --within 5")
    assert told("status repo", code=1)["expiring"] == ["root"]
    ran("add repo digits 1.0.0 one.mslite")
    for path in (here / "repo/pieces").iterdir():
        path.unlink()
    assert "are missing or damaged" in ran("status repo", code=1)


def test_several_holders_of_keys(here: Path) -> None:
    ran("init repo --root-keys 3 --root-threshold 2 --keys keys")
    for number in (1, 2):
        (here / f"person{number}").mkdir()
        for kind in ("key", "pub"):
            shutil.move(here / f"keys/offline/root-{number}.{kind}", here / f"person{number}/root-{number}.{kind}")
    (here / "keys/offline/root-3.key").unlink()
    first = told("rotate repo timestamp --keys keys --keys person1")
    assert first["stored"] == {} and "root" in str(first["waiting"])
    assert "waiting: root" in ran("status repo", code=1)
    assert "devices do not see it yet" in ran("sign repo --keys person1")
    assert told("sign repo --keys person2 --keys keys")["waiting"] == {}
    device(here)
    ran("rotate repo timestamp --keys keys --keys person1")
    assert told("sign repo --discard")["discarded"]


def test_encrypted_keys(here: Path) -> None:
    (here / "word").write_text("correct horse\n")
    (here / "wrong").write_text("battery\n")
    ran("init repo --application digits --passphrase word")
    assert "--passphrase FILE" in ran("rotate repo targets", code=3)
    assert "the passphrase is wrong" in ran("rotate repo targets --passphrase wrong", code=3)
    ran("rotate repo targets --passphrase word")
    device(here)


def test_a_team_signs_its_application(here: Path) -> None:
    ran("init repo")
    assert RUN.invoke(app, ["keygen", "laptop", "--folder", str(here / "."), "--json"]).exit_code == 0
    assert "digits has 0 of 1 signatures" in ran("delegate repo digits --key laptop.pub")
    assert told("sign repo --keys . --keys keys")["waiting"] == {}
    assert told("add repo digits 1.0.0 one.mslite --keys . --keys keys")["waiting"] == {}
    assert device(here).release("digits", "1.0.0")


@pytest.mark.parametrize(
    ("words", "code", "match"),
    [
        ("add none digits 1 one.mslite", 3, "msedge hub init none"),
        ("status none", 3, "msedge hub init none"),
        ("add repo none 1 one.mslite", 3, "msedge hub delegate"),
        ("add repo digits ../1 one.mslite", 3, "expected an application and a version"),
        ("add repo digits 1 none.mslite", 3, "none.mslite"),
        ("add repo digits 1 a=one.mslite a=two.mslite", 2, "the same name"),
        ("add repo digits 1 one.mslite --lineage x", 2, "expected NAME=VALUE"),
        ("promote repo digits 9", 3, "no version '9'"),
        ("rotate repo none", 3, "no role 'none'"),
        ("init repo", 3, "already"),
        ("init other --application root", 3, "other than"),
        ("init other --days none=3", 3, "expected names of"),
        ("init other --days root=0", 2, "days from 1"),
        ("init other --root-threshold 2", 3, "threshold from 1 to its 1 keys"),
        ("sign repo", 3, "nothing waits"),
        ("mirror repo digits 9 oci://h/x", 3, "no version '9'"),
        ("status s3://", 3, "s3://BUCKET/PREFIX"),
    ],
)
def test_what_is_refused(here: Path, words: str, code: int, match: str) -> None:
    ran("init repo --application digits")
    before = sorted(here.rglob("*"))
    assert match in " ".join(ran(words, code).split())
    assert sorted(here.rglob("*")) == before  # no file of the repository, and no key


def test_a_release_is_mirrored_to_a_registry(here: Path) -> None:
    """`msedge serve` finds it there, and so do KServe and Docker."""
    (here / "password").write_text(PASSWORD)
    ran("init repo --application digits")
    ran("add repo digits 1.0.0 model.mslite=one.mslite")
    ran("add repo digits 2.0.0 a.mslite=one.mslite b.mslite=two.mslite")
    with Spec("basic").run() as host:
        table = f'["{host}"]\nuser = "{USER}"\npassword_file = "{here / "password"}"\n'
        (here / "registries.toml").write_text(table)
        mirrored = told(f"mirror repo digits 1.0.0 oci://{host}/team/digits --credentials registries.toml")
        assert mirrored["address"] == f"oci://{host}/team/digits:1.0.0"
        assert "--file NAME" in ran(f"mirror repo digits 2.0.0 oci://{host}/team/digits", code=3)
        ran(f"mirror repo digits 2.0.0 oci://{host}/team/digits:2 --file b.mslite --credentials registries.toml")
        known = Credentials.of_file(here / "registries.toml")
        for tag, path in (("1.0.0", "one.mslite"), ("2", "two.mslite")):
            source = Registry(Oci(f"oci://{host}/team/digits:{tag}", Web(known)), Cache(here / "cache"), moment=30)
            (found,) = source.scan()["digits"].versions.values()
            assert Path(found.path).read_bytes() == (here / path).read_bytes()
