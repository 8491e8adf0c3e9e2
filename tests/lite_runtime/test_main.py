"""`python -m lite_runtime`: JSON on stdout, one line on stderr for a mistake, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lite_runtime import bundle
from lite_runtime.__main__ import main
from lite_runtime.graph import Graph, Node, Value
from tests.lite_runtime.learners import learner


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A bundle that negates."""
    graph = Graph(
        (Value("x", "float32", ("n",)),), (Value("y", "float32", ("n",)),), (Node("Neg", ("x",), ("y",)),), {}
    )
    bundle.write(tmp_path / "m.mslite", {"predict": graph})
    return str(tmp_path / "m.mslite")


def test_run(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    out = tmp_path / "out.npz"
    assert main(["run", path, "-i", f"x={tmp_path / 'x.npy'}", "-o", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["y"]["first"] == [-1, -2]
    with np.load(out) as held:
        assert held["y"].tolist() == [-1, -2]


def test_inspect_and_bench(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path]) == 0
    assert json.loads(capsys.readouterr().out)["predict"]["operators"] == {"Neg": 1}
    assert main(["bench", path, "--seconds", "0.01"]) == 0
    assert json.loads(capsys.readouterr().out)["median_us"] > 0


def test_verify(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graphs, x = bundle.read(path).signatures, np.array([1, np.inf], np.float32)
    for factor in (-1, -2):
        y = (factor * x).astype(np.float32)
        bundle.write(tmp_path / f"{factor}.mslite", graphs, golden={"predict": ({"x": x}, {"y": y})})
    assert main(["verify", str(tmp_path / "-1.mslite")]) == 0
    assert json.loads(capsys.readouterr().out)["largest_difference"] == {"predict": {"y": 0}}
    assert main(["verify", str(tmp_path / "-2.mslite"), "--backend", "reference"]) == 3
    assert "output 'y' of 'predict' differs from the golden sample: 1 off" in capsys.readouterr().err
    assert main(["verify", path]) == 3
    assert "holds no golden sample" in capsys.readouterr().err


def test_inspect_of_a_program(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", path, "--program"]) == 0
    (step,) = json.loads(capsys.readouterr().out)["predict"]["steps"]
    assert step["kernel"] == "elementwise.f32_chain" and step["numbers"]["total"] == 1
    places = [(o["name"], o["role"], o["memory"], o["value"], o["shape"]) for o in step["operands"]]
    assert places == [("sources", "read", "input x", "x", [1]), ("y", "written", "output y", "y", [1])]
    assert main(["inspect", path, "--program", "--signature", "train"]) == 3
    assert "no signature 'train'" in capsys.readouterr().err


def test_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state, by = (str(tmp_path / name) for name in ("m.mslite", "mine.msstate", "by.npy"))
    Path(path).write_bytes(learner())
    np.save(by, np.array(3, np.int64))
    count = ["run", path, "--signature", "count", "-i", f"by={by}", "--save-state", state]
    for known, seen in (([], 0), (["--state", state], 9), (["--state", state], 18)):
        assert main([*count, *known]) == 0
        assert json.loads(capsys.readouterr().out)["seen"]["first"] == [seen]
    assert main(["bench", path, "--signature", "train_step", "--seconds", "0.01", "--state", state]) == 0
    capsys.readouterr()
    assert main(["inspect", path]) == 0
    shown = json.loads(capsys.readouterr().out)["train_step"]
    assert list(shown["inputs"]) == ["x", "t"] and shown["writes"] == ["b", "w"]
    assert main(["run", path, "--state", path]) == 3
    assert "not a state file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["run", "none.mslite"], ["run", "{path}", "-i", "x"], ["run", "{path}", "-i", "x=none.npy"]]
)
def test_mistakes_exit_with_3(path: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([a.format(path=path) for a in arguments]) == 3
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and not captured.out


def test_usage_exits_with_2() -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "m"])
    assert stop.value.code == 2
