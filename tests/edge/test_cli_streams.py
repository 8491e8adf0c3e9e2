"""The commands on streaming models, whose .tflite keeps variables between runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.converter.streams import FRAME, denoiser, ring_buffer, wake_word
from tests.edge.test_cli import as_json, msedge

MODELS = {"denoiser": denoiser, "ring_buffer": ring_buffer, "wake_word": wake_word}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / f"{request.param}.tflite"
    path.write_bytes(MODELS[request.param]())
    msedge("convert", path, "-o", path.with_suffix(".mslite"))
    return path


def test_verify_compares_steps_of_a_stream(model: Path) -> None:
    """Each run is the next step of both; it failed before at every model with variables."""
    found = as_json("verify", model, model.with_suffix(".mslite"), "--samples", "20", "--layers")
    assert found["same"] and found["runs"] == 20 and found["outputs"][0]["relative"] < 1e-5
    assert found["layers"] and min(row["snr"] for row in found["layers"]) > 60


def test_verify_notices_lost_state(model: Path, tmp_path: Path) -> None:
    """The same network with another initial state or none differs at a later step."""
    other = tmp_path / "other.tflite"
    other.write_bytes(ring_buffer(initial=0.5))
    if model.stem == "ring_buffer":
        found = as_json("verify", other, model.with_suffix(".mslite"), code=1)
        assert not found["same"]


def test_verify_uses_both_limits(model: Path) -> None:
    """Of the range, or absolute: one of them is enough, and both are told."""
    bundle = model.with_suffix(".mslite")
    found = as_json("verify", model, bundle, "--tolerance", "0", "--absolute", "0.001")
    assert found["same"] and (found["tolerance"], found["absolute"]) == (0, 0.001)
    stdout, _ = msedge("verify", model, bundle, "--tolerance", "0.5", "--absolute", "0")
    assert "equal within 0.5 of each output's range, or 0, over 3 runs" in stdout


def test_bench_against_litert(model: Path) -> None:
    found = as_json("bench", model, "--against", "litert", "--rounds", "3")
    ours, theirs = found["runs"][0]["contenders"]
    assert theirs["name"] == "litert" and theirs["difference"] < 1e-5 and not found["runs"][0]["absent"]
    assert ours["seconds"] > 0


def test_run_continues_a_stream(tmp_path: Path) -> None:
    path, state, x = tmp_path / "ring.tflite", tmp_path / "ring.msstate", tmp_path / "x.npy"
    path.write_bytes(ring_buffer())
    msedge("convert", path, "-o", tmp_path / "ring.mslite")
    np.save(x, np.ones((1, 1, FRAME), np.float32))
    command = ["run", tmp_path / "ring.mslite", "-i", f"frame={x}", "--save-state", state]
    first = as_json(*command)["outputs"]
    second = as_json(*command, "--state", state)["outputs"]
    assert first != second and as_json(*command)["outputs"] == first
    assert [row["name"] for row in as_json("inspect", tmp_path / "ring.mslite")["state"]] == ["stream/ring"]
