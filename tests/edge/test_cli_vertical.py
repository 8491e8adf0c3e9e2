"""`msedge cut` and `msedge vertical` as scripts and users run them, with certificates of both parties."""

from __future__ import annotations

import json
import runpy
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.edge.test_cli import msedge
from tests.federated.vertical.parts import joint, people
from tests.waiting import PATIENCE, until

ROOT = Path(__file__).parents[2]
ACTIVE = """
[vertical]
role = "active"
bundle = "active.mslite"
[data]
file = "active.npz"
[learning]
epochs = 2
batch = 16
rate = 0.2
[report]
bundle = "learned.mslite"
json = "run.json"
"""
PASSIVE = """
[vertical]
role = "passive"
bundle = "passive.mslite"
[data]
file = "passive.npz"
[learning]
rate = 0.2
[report]
bundle = "part.mslite"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, cut and converted with the commands, and both parties' rows and files."""
    import onnx_ir as ir

    folder = tmp_path_factory.mktemp("vertical")
    ir.save(joint(), folder / "joint.onnx")
    parts = folder / "first.onnx", folder / "rest.onnx"
    out, said = msedge("cut", folder / "joint.onnx", "--input", "x_b", "--first", parts[0], "--rest", parts[1])
    assert "first.onnx: x_b -> result" in out and "rest.onnx: x_a, result" in out and "--slopes result" in said
    msedge("convert", parts[0], "-o", folder / "passive.mslite", "--trainable", "*", "--loss", "inner_product")
    msedge("convert", parts[1], "-o", folder / "active.mslite", "--trainable", "*", "--slopes", "result")
    people(folder)
    (folder / "active.toml").write_text(ACTIVE)
    (folder / "passive.toml").write_text(PASSIVE)
    return folder


def test_both_parties_in_one_process(folder: Path) -> None:
    out, said = msedge("vertical", folder / "active.toml", "--simulate", folder / "passive.toml")
    assert "120 common rows, 12 steps" in out and "rows not trained on: loss" in out
    assert "epoch 2: loss" in said and {"learned.mslite", "part.mslite"} <= {path.name for path in folder.iterdir()}
    out, _ = msedge("vertical", folder / "active.toml", "--simulate", folder / "passive.toml", "--json")
    assert json.loads(out)["common"] == 120


def test_two_parties_with_certificates(folder: Path, tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples" / "federated"))
    from certificates import certificates  # type: ignore[import-not-found]

    for name in ("one", "other"):
        certificates(tmp_path / name, ["127.0.0.1"])

    def trust(own: str, other: str) -> list[Any]:
        files = tmp_path / other / "ca.crt", tmp_path / own / "server.crt", tmp_path / own / "server.key"
        return [word for pair in zip(("--authority", "--certificate", "--key"), files, strict=True) for word in pair]

    address: list[str] = []
    from federated.vertical.config import read
    from federated.vertical.run import listen

    def passive() -> None:
        from federated.transport.channel import Tls

        tls = Tls(*(str(path) for path in trust("other", "one")[1::2]))
        listen(read(folder / "passive.toml"), "127.0.0.1:0", tls, address.append)

    thread = threading.Thread(target=passive)
    thread.start()
    until(lambda: address)
    words = ["vertical", folder / "active.toml", "--connect", address[0], *trust("one", "other"), "--json"]
    out, _ = msedge(*words)
    thread.join(PATIENCE)
    alone, _ = msedge("vertical", folder / "active.toml", "--simulate", folder / "passive.toml", "--json")
    one, other = json.loads(out), json.loads(alone)
    assert one["rows"] == other["rows"] and one["steps"] == other["steps"] and not thread.is_alive()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["active.toml"], 2, "expected exactly one of --simulate, --connect and --listen"),
        (["active.toml", "--connect", "a:1", "--listen", "a:1"], 2, "expected exactly one of"),
        (["passive.toml", "--listen", "127.0.0.1:0", "--resume"], 2, "the active party decides"),
        (["active.toml", "--simulate", "passive.toml", "--key", "k"], 2, "not used with --simulate"),
        (["active.toml", "--connect", "127.0.0.1:1", "--key", "k"], 2, "expected --authority too"),
        (["passive.toml", "--listen", "192.0.2.1:80"], 3, "expected certificates for an address"),
        (["active.toml", "--listen", "127.0.0.1:0"], 3, "vertical.role: expected passive, got active"),
        (["passive.toml", "--simulate", "active.toml"], 3, "vertical.role: expected"),
        (["none.toml", "--listen", "127.0.0.1:0"], 3, "cannot read"),
    ],
)
def test_wrong_usage(folder: Path, arguments: list[str], code: int, says: str) -> None:
    found = [str(folder / word) if word.endswith(".toml") else word for word in arguments]
    assert says in " ".join(msedge("vertical", *found, code=code)[1].split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--input", "x"], "expected some of the inputs x_a, x_b, got x"),
        (["--input", "x_a", "--input", "x_b"], "say where to cut it"),
        (["--input", "x_b", "--at", "logits"], "expected values that depend on these inputs alone, got logits"),
        (["--input", "x_b", "--at", "there"], ""),
    ],
)
def test_cuts(folder: Path, tmp_path: Path, options: list[str], says: str) -> None:
    paths = ["--first", tmp_path / "a.onnx", "--rest", tmp_path / "b.onnx"]
    out, said = msedge("cut", folder / "joint.onnx", *options, *paths, code=3 if says else 0)
    if says:
        assert says in " ".join(said.split()) and not list(tmp_path.iterdir())
    else:
        assert "-> there" in out


def test_the_two_parts_compute_what_the_whole_does(folder: Path) -> None:
    import onnxruntime

    sessions = [onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("joint", "first", "rest")]
    rng = np.random.default_rng()
    a, b = rng.standard_normal((9, 5), dtype=np.float32), rng.standard_normal((9, 7), dtype=np.float32)
    (whole,) = sessions[0].run(None, {"x_a": a, "x_b": b})
    (result,) = sessions[1].run(None, {"x_b": b})
    (joined,) = sessions[2].run(None, {"x_a": a, "result": result})
    np.testing.assert_allclose(joined, whole, rtol=1e-5, atol=1e-6)


def test_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command that it prints, as printed."""
    monkeypatch.setattr(sys, "argv", ["make_parties.py", str(tmp_path)])
    runpy.run_path(str(ROOT / "examples" / "federated" / "make_parties.py"), run_name="__main__")
    commands = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if line.startswith("  msedge")]
    monkeypatch.chdir(tmp_path)
    for words in commands:
        out, _ = msedge(*(word.strip("'") for word in words))
    assert len(commands) == 4 and "2000 common rows" in out
    accuracy = float(out.split("accuracy ")[1].split()[0])
    assert accuracy > 0.8
