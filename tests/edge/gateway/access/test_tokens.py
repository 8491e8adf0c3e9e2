"""Tokens: the file's contents give no access, damage is refused by name, two concurrent additions both succeed."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.access import tokens
from edge.gateway.errors import GatewayError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tokens.json"


def secret_of(token: str) -> str:
    return token.split("_", 2)[2]


def test_a_token_is_shown_once_and_kept_as_a_hash(path: Path) -> None:
    shown = tokens.add(path, "ci", ["infer", "manage", "infer"], days=2)
    (kept,) = tokens.listed(path)
    assert shown.startswith(f"msedge_{kept.id}_")
    assert len(secret_of(shown)) == 43  # 256 bits
    assert secret_of(shown) not in path.read_text()
    assert kept.scopes == ("infer", "manage")
    assert kept.expires is not None and kept.expires - kept.created == pytest.approx(2 * 86_400)
    assert tokens.matches(kept, secret_of(shown))
    assert not tokens.matches(kept, secret_of(shown)[:-1])
    assert not tokens.matches(kept, "")
    assert not tokens.matches(kept, "\udcff")


def test_only_its_owner_reads_the_file(path: Path) -> None:
    tokens.add(path, "a", ["infer"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o640)
    tokens.add(path, "b", ["infer"])
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_others_write_is_refused(path: Path) -> None:
    tokens.add(path, "a", ["infer"])
    path.chmod(0o666)
    with pytest.raises(GatewayError, match="chmod go-w"):
        tokens.listed(path)


def test_a_revoked_token_is_removed(path: Path) -> None:
    tokens.add(path, "a", ["infer"])
    tokens.add(path, "b", ["metrics"])
    tokens.revoke(path, "a")
    assert [token.name for token in tokens.listed(path)] == ["b"]
    with pytest.raises(GatewayError, match="'a': no such token; there are b"):
        tokens.revoke(path, "a")


@pytest.mark.parametrize(
    ("name", "scopes", "days", "match"),
    [
        ("a", [], None, "scope: expected some of infer, manage, metrics, memory, got none"),
        ("a", ["root"], None, "got root"),
        ("", ["infer"], None, "name: expected"),
        ("a b", ["infer"], None, "name: expected"),
        ("x" * 65, ["infer"], None, "name: expected"),
        ("a\n", ["infer"], None, "name: expected"),
        ("a", ["infer"], 0.0, "days: expected"),
        ("a", ["infer"], float("nan"), "days: expected"),
        ("taken", ["infer"], None, "'taken' has a token already"),
    ],
)
def test_what_cannot_be_added(path: Path, name: str, scopes: list[str], days: float | None, match: str) -> None:
    tokens.add(path, "taken", ["infer"])
    before = path.read_bytes()
    with pytest.raises(GatewayError, match=match):
        tokens.add(path, name, scopes, days=days)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_adding_at_once_loses_none(path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        shown = list(pool.map(lambda n: tokens.add(path, f"n{n}", ["infer"]), range(16)))
    assert {token.name for token in tokens.listed(path)} == {f"n{n}" for n in range(16)}
    assert len(set(shown)) == 16


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(GatewayError, match="create the folder first"):
        tokens.add(tmp_path / "none" / "tokens", "a", ["infer"])
    with pytest.raises(GatewayError, match="cannot read"):
        tokens.listed(tmp_path / "tokens")


def good() -> dict[str, Any]:
    return {
        "id": "0" * 12, "name": "a", "scopes": ["infer"], "created": 1.0, "expires": None, "salt": "0" * 32,
        "digest": "0" * 64,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"id": "0" * 11}, {"id": "G" * 12}, {"id": None}, {"name": "a b"}, {"name": 1}, {"scopes": []},
        {"scopes": "infer"}, {"scopes": ["x"]}, {"scopes": [1]}, {"scopes": [[]]}, {"created": "now"},
        {"created": True}, {"created": float("nan")}, {"expires": float("inf")}, {"expires": "never"},
        {"salt": "0"}, {"salt": "٠" * 32}, {"digest": ""}, {"digest": 0}, {"more": 1},
    ],
)  # fmt: skip
def test_entries_that_are_damaged(change: dict[str, Any]) -> None:
    assert len(tokens.parse(json.dumps({"format": 1, "tokens": [good()]}).encode())) == 1
    with pytest.raises(GatewayError, match=r"tokens\[0\]"):
        tokens.parse(json.dumps({"format": 1, "tokens": [good() | change]}).encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"format": 2, "tokens": []}', b'{"format": 1, "tokens": {}}', b"\xff", b"[" * 100_000,
     json.dumps({"format": 1, "tokens": [good(), good()]}).encode()],
)  # fmt: skip
def test_files_that_are_damaged(data: bytes) -> None:
    with pytest.raises(GatewayError, match="expected"):
        tokens.parse(data)


@settings(max_examples=150)
@given(st.integers(0, 10**6), st.binary(max_size=4))
def test_no_damage_raises_anything_else(at: int, noise: bytes) -> None:
    data = json.dumps({"format": 1, "tokens": [good()]}).encode()
    at %= len(data)
    try:
        tokens.parse(data[:at] + noise + data[at + len(noise) + 1 :])
    except GatewayError:
        return
