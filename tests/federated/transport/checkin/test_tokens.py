"""The file of devices that may check in."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from federated.errors import FederatedError
from federated.transport.checkin.tokens import Tokens, add


def test_a_device_is_known_by_its_token_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    first, second = add(file, "phone"), add(file, "page-1")
    known = Tokens(file)
    assert (known.device(first), known.device(second)) == ("phone", "page-1")
    for wrong in ("", "phone", first[:-1], first + " ", "\ud800"):
        assert known.device(wrong) is None
    assert first not in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_comments_stay_and_a_removed_device_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# the fleet of the lab\n\n")
    token = add(file, "phone")
    assert file.read_text().startswith("# the fleet of the lab\n")
    known = Tokens(file)
    assert known.device(token) == "phone"
    file.write_text("# none\n")
    assert known.device(token) is None
    os.unlink(file)
    assert known.device(token) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("phone\n", ":1: expected a device's name and 64"),
        ("phone 12\n", "64 hexadecimal"),
        ("a b " + "0" * 64, ":1:"),
        (f"a {'0' * 64}\na {'1' * 64}\n", ":2: a, or its token, a second time"),
        (f"a {'0' * 64}\nb {'0' * 64}\n", ":2: b"),
        (f"{'n' * 201} {'0' * 64}\n", ":1:"),
    ],
)
def test_another_file_is_refused_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(text)
    with pytest.raises(FederatedError, match=said):
        Tokens(file)


def test_what_cannot_be_added(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    add(file, "phone")
    with pytest.raises(FederatedError, match="phone is there already"):
        add(file, "phone")
    for name in ("", "two words", "line\nbreak", "#"):
        with pytest.raises(FederatedError, match="expected a device's name"):
            add(file, name)
    with pytest.raises(FederatedError, match="--add-device"):
        Tokens(tmp_path / "none")
