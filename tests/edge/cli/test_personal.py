"""`msedge personal`: what a store holds, and deleting from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edge.cli.app import app
from federated.server.store import PersonalReader, PersonalStore, Retention

BASE = {"head": np.zeros(3, np.float32)}


@pytest.fixture
def store(tmp_path: Path) -> PersonalStore:
    made = PersonalStore(tmp_path / "personal.sqlite", Retention(5, 365))
    for number in range(3):
        for device in ("d1", "d2"):
            made.put(device, "x", {"head": np.full(3, number + 1, np.float32)}, BASE, round=number, consent="serve")
    return made


def said(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["personal", *words], prog_name="msedge")
    return done.exit_code, done.stdout, done.stderr


def test_a_store_is_listed(store: PersonalStore) -> None:
    code, out, _ = said("list", store.path, "--json")
    found = json.loads(out)
    assert code == 0 and found["retention"] == {"versions": 5, "days": 365.0}
    assert [(row["device"], row["version"]) for row in found["devices"]] == [("d1", 3), ("d2", 3)]
    code, out, err = said("list", store.path)
    assert code == 0 and "d2" in out and "5 versions of each are kept, for 365 days" in err


def test_a_device_is_forgotten(store: PersonalStore) -> None:
    code, _, err = said("forget", store.path, "d1")
    assert code == 0 and "3 versions deleted" in err and store.devices() == {"d2": 3}
    code, _, err = said("forget", store.path, "d1")
    assert code != 0 and "no such device" in err and "msedge personal list" in err


def test_expiring_is_a_command(store: PersonalStore) -> None:
    assert "0 versions deleted" in said("expire", store.path)[2]
    assert "4 versions deleted" in said("expire", store.path, "--versions", "1")[2]
    assert PersonalReader(store.path).retention == Retention(1, 365)


@pytest.mark.parametrize("command", [("list",), ("forget", "d1"), ("expire",)])
def test_no_command_makes_a_store(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "none.sqlite"
    code, _, err = said(command[0], str(path), *command[1:])
    assert code != 0 and "there is no such file" in err and not path.exists()
