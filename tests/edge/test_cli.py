"""The command line as scripts and users run it: exit codes, output streams, error messages.

Bundles run by their NumPy references here; kernels have separate tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

from edge.cli import errors
from edge.cli.app import app
from tests.edge.conftest import Small

SLOWLY = ("--backend", "reference")


def msedge(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    """Run a command in this process; its stdout and stderr, with lines of full width whatever the environment says."""
    done = CliRunner().invoke(app, [str(a) for a in arguments], prog_name="msedge", env={"COLUMNS": None})
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done.stdout, done.stderr


def as_json(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Stdout must be one JSON object and nothing else."""
    stdout, _ = msedge(*arguments, "--json", code=code)
    made = json.loads(stdout)
    assert isinstance(made, dict)
    return made


# -- convert ----------------------------------------------------------------------------------------------------------


def test_convert_writes_a_bundle_and_says_what_it_did(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "out.mslite"
    stdout, stderr = msedge("convert", small.source, "-o", out)
    assert out.stat().st_size > 0
    assert "operators" in stdout and "msedge verify" in stdout
    assert "converting" in stderr


def test_convert_reports_as_json(small: Small, tmp_path: Path) -> None:
    out = tmp_path / "half.mslite"
    made = as_json("convert", small.source, "-o", out, "--quantize", "fp16", "--input-shape", "x=2,3,8,8")
    assert made["output"] == str(out)
    assert made["bundle_bytes"] == out.stat().st_size
    assert as_json("inspect", out)["signatures"]["predict"]["inputs"][0]["shape"] == [2, 3, 8, 8]


def test_convert_of_another_file_type_fails_and_leaves_nothing(tmp_path: Path) -> None:
    text, out = tmp_path / "text.onnx", tmp_path / "out.mslite"
    text.write_text("this is no model")
    _, stderr = msedge("convert", text, "-o", out, code=3)
    assert stderr.splitlines()[-1].startswith("error: ") and "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == [text]


def test_convert_of_a_missing_file(tmp_path: Path) -> None:
    _, stderr = msedge("convert", tmp_path / "none.onnx", "-o", tmp_path / "out.mslite", code=3)
    assert "none.onnx" in stderr


# -- inspect ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", ["80", "120"])
def test_inspect_draws_the_graph_within_the_terminal(small: Small, width: str) -> None:
    done = CliRunner().invoke(app, ["inspect", str(small.bundle)], env={"COLUMNS": width})
    assert done.exit_code == 0
    assert max(map(len, done.stdout.splitlines())) <= int(width)
    assert "Conv" in done.stdout and "16×8×3×3" in done.stdout and "+ Relu" in done.stdout
    assert "\x1b" not in done.stdout


def test_inspect_as_json_has_every_operator(small: Small) -> None:
    made = as_json("inspect", small.bundle)
    graph = made["signatures"]["predict"]
    assert [v["name"] for v in graph["inputs"]] == ["x"] and graph["inputs"][0]["shape"][0] == "n"
    assert [node["op"] for node in graph["nodes"]].count("Conv") == 2
    assert sum(node["weights"] for node in graph["nodes"]) == graph["weights_bytes"]


def test_inspect_shows_the_program_by_name(small: Small) -> None:
    made = as_json("inspect", small.bundle, "--program", "--input-shape", "x=2,3,8,8")
    program = made["signatures"]["predict"]
    kernels = [step["kernel"] for step in program["steps"]]
    assert kernels.count("gemm.f32_gemm") >= 1 and program["words"] > 0 and program["waiting"] == []
    gemm = next(step for step in program["steps"] if step["kernel"] == "gemm.f32_gemm")
    operands = {operand["name"]: operand for operand in gemm["operands"]}
    assert list(operands) == ["a", "w", "taps_at", "bias", "residual", "c"]
    assert operands["taps_at"]["memory"] == "constant" and operands["taps_at"]["role"] == "read"
    assert operands["residual"]["memory"] == "" and operands["c"]["role"] == "written"
    assert gemm["numbers"]["low"] in (0.0, "-inf") and gemm["numbers"]["high"] == "inf"
    assert {"rows", "columns", "per_image", "alpha"} <= set(gemm["numbers"])
    memory = {operand["memory"] for step in program["steps"] for operand in step["operands"]}
    assert {"input x", "output scores", "arena", "constant"} <= memory
    stdout, _ = msedge("inspect", small.bundle, "--program", "--signature", "predict")
    assert "gemm.f32_gemm" in stdout and "input x +0" in stdout and "left out" in stdout


def test_inspect_plans_a_program_for_the_shapes_asked_for(small: Small) -> None:
    def rows(*arguments: str) -> int:
        steps = as_json("inspect", small.bundle, "--program", *arguments)["signatures"]["predict"]["steps"]
        found: int = [step["numbers"]["rows"] for step in steps if step["kernel"] == "gemm.f32_gemm"][-1]
        return found

    assert rows("--input-shape", "x=6,3,8,8") == 6 * rows()
    assert as_json("inspect", small.bundle, "--program", "--signature", "none", code=3)["error"]["kind"] == "InputError"


def test_inspect_of_a_damaged_bundle(small: Small, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.mslite"
    damaged.write_bytes(small.bundle.read_bytes()[:-100])
    made = as_json("inspect", damaged, code=3)
    assert made["error"]["kind"] == "BundleError"


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_reads_and_keeps_arrays(small: Small, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x)
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    stdout, _ = msedge("run", small.bundle, "-i", f"x={tmp_path / 'x.npy'}", "-o", one, *SLOWLY)
    assert "scores" in stdout and "4×5" in stdout
    msedge("run", small.bundle, "-i", tmp_path / "all.npz", "-o", other, *SLOWLY)
    with np.load(one) as a, np.load(other) as b:
        assert a["scores"].shape == (4, 5)
        np.testing.assert_array_equal(a["scores"], b["scores"])


def test_run_makes_up_inputs_by_seed(small: Small) -> None:
    first, again, other = (
        as_json("run", small.bundle, "--random", seed, "--input-shape", "x=2,3,8,8", *SLOWLY)
        for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert np.shape(first["outputs"]["scores"]["values"]) == (2, 5)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 3, "missing x"),
        (("-i", "x"), 2, "NAME=FILE.npy"),
        (("-i", "x=nowhere.npy"), 3, "nowhere.npy"),
        (("--random", "0", "--input-shape", "x=3"), 3, "--input-shape x=3"),
        (("--random", "0", "--input-shape", "y=1,3,8,8"), 3, "expected an input of x"),
        (("--random", "0", "--input-shape", "x:1"), 2, "NAME=1,3,224,224"),
        (("--random", "0", "--threads", "0"), 2, "--threads"),
        (("--random", "0", "--signature", "train"), 3, "predict"),
    ],
)
def test_run_says_what_is_wrong(small: Small, arguments: tuple[str, ...], code: int, says: str) -> None:
    stdout, stderr = msedge("run", small.bundle, *SLOWLY, *arguments, code=code)
    assert says in stderr and not stdout


def test_run_refuses_pickles(small: Small, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    _, stderr = msedge("run", small.bundle, "-i", f"x={tmp_path / 'x.npy'}", *SLOWLY, code=3)
    assert "pickled" in stderr


# -- verify -----------------------------------------------------------------------------------------------------------


def test_verify_finds_the_bundle_equal(small: Small) -> None:
    made = as_json("verify", small.source, small.bundle, *SLOWLY)
    assert made["same"] and made["first_divergence"] is None
    assert made["outputs"][0]["relative"] < 1e-5


def test_verify_names_the_operator_where_a_bundle_differs_from_its_source(small: Small) -> None:
    made = as_json("verify", small.source, small.wrong, *SLOWLY, code=1)
    assert not made["same"]
    found = made["first_divergence"]
    assert found["source_op"] in ("Conv", "Relu") and "Conv" in found["lite_node"]
    stdout, _ = msedge("verify", small.source, small.wrong, *SLOWLY, code=1)
    assert "DIFFERENT" in stdout and "first difference" in stdout


def test_verify_tells_rounding_from_mistakes(tmp_path: Path) -> None:
    """A tie becomes the other integer, as it does in the source where its input changes in the last bit; a source that
    is another model differs by more."""
    for name, factor in (("source", 1.0), ("near", 1.0000002), ("far", 3.0)):
        nodes = [helper.make_node("Mul", ["x", "factor"], ["z"]), helper.make_node("Round", ["z"], ["y"])]
        ends = [[helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, [3])] for end in ("x", "y")]
        given = onnx.numpy_helper.from_array(np.float32(factor), "factor")
        model = helper.make_model(helper.make_graph(nodes, name, *ends, [given]), ir_version=9)
        onnx.save(model, tmp_path / f"{name}.onnx")
        msedge("convert", tmp_path / f"{name}.onnx", "-o", tmp_path / f"{name}.mslite")
    np.savez(tmp_path / "ties.npz", x=np.array([0.5, 2.5, 2.0], np.float32))
    source, data = tmp_path / "source.onnx", ("--data", tmp_path / "ties.npz", *SLOWLY)
    found = as_json("verify", source, tmp_path / "near.mslite", *data)
    assert found["same"] and found["outputs"][0]["largest"] == found["own_differences"]["y"] == 1
    stdout, _ = msedge("verify", source, tmp_path / "near.mslite", *data)
    assert "rounding: more than 0.0001 of each output's range" in stdout and "'y' by up to 1" in stdout
    assert not as_json("verify", source, tmp_path / "far.mslite", *data, code=1)["same"]
    assert as_json("verify", source, tmp_path / "source.mslite", *data)["own_differences"] == {}


def test_verify_takes_data_and_runs_it_in_batches(small: Small, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.ones((6, 3, 8, 8), np.float32))
    assert as_json("verify", small.source, small.bundle, "--data", tmp_path / "data.npz", *SLOWLY)["runs"] == 1
    fixed = tmp_path / "fixed.mslite"
    msedge("convert", small.source, "-o", fixed, "--input-shape", "x=2,3,8,8")
    arguments = ("--data", tmp_path / "data.npz", "--samples", "2", *SLOWLY)
    assert as_json("verify", small.source, fixed, *arguments)["runs"] == 2
    for x in (np.ones((1, 3, 8, 8), np.float32), np.float32(1)):
        np.savez(tmp_path / "data.npz", x=x)
        _, stderr = msedge("verify", small.source, fixed, *arguments, code=3)
        assert f"input 'x': expected 2 rows or more, got shape {x.shape}" in stderr


# -- bench, doctor ----------------------------------------------------------------------------------------------------


def test_bench_times_us_and_a_peer(small: Small) -> None:
    arguments = ("--against", "onnxruntime", "--rounds", "3", "--profile", *SLOWLY)
    made = as_json("bench", small.source, *arguments)
    ours, peer = made["runs"][0]["contenders"]
    assert (ours["name"], peer["name"]) == ("msedge", "onnxruntime")
    assert ours["seconds"] > 0 and peer["ratio"]["low"] <= peer["ratio"]["median"] <= peer["ratio"]["high"]
    assert peer["difference"] < 1e-4
    assert {row["kernel"] for row in made["profile"]} == {"reference"}
    assert as_json("bench", small.bundle, "--source", small.source, *arguments)["runs"][0]["contenders"][1]["ratio"]


def test_bench_times_several_counts_of_threads_and_cold_starts(small: Small, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    arguments = ("--rounds", "3", "--threads", "1,2", "--cold", "--trace", trace, *SLOWLY)
    made = as_json("bench", small.source, *arguments)
    assert [run["threads"] for run in made["runs"]] == [1, 2]
    assert [start["name"] for start in made["cold"]] == ["numpy", "msedge"]
    assert made["cold"][0]["peak_bytes"] < made["cold"][1]["peak_bytes"]
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert spans and all(event["dur"] >= 0 for event in spans)


def test_bench_shows_peers_that_cannot_run_a_model_and_the_profile(small: Small) -> None:
    arguments = ("--against", "litert,openvino", "--rounds", "3", "--profile", *SLOWLY)
    stdout, _ = msedge("bench", small.source, *arguments)
    assert "litert: LiteRT cannot load" in stdout and "openvino" in stdout
    assert "of roof" in stdout and "GFLOP/s" in stdout


@pytest.mark.parametrize("threads", ["0", "1,x", "", "257"])
def test_bench_says_what_counts_of_threads_look_like(small: Small, threads: str) -> None:
    _, stderr = msedge("bench", small.source, "--threads", threads, code=2)
    assert "1,2" in stderr


def test_bench_of_a_bundle_against_a_peer_needs_its_source(small: Small) -> None:
    _, stderr = msedge("bench", small.bundle, "--against", "onnxruntime", code=3)
    assert "--source MODEL.onnx" in stderr


def test_bench_knows_its_peers(small: Small) -> None:
    _, stderr = msedge("bench", small.bundle, "--against", "nobody", code=2)
    assert "onnxruntime" in stderr


def test_doctor_sees_what_is_installed() -> None:
    made = as_json("doctor")
    assert made["ok"] and made["numpy"] == np.__version__
    assert made["extras"]["oracle"]["packages"]["onnxruntime"] and made["extras"]["oracle"]["install"] is None


def test_doctor_names_a_cache_that_others_can_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path / "cache"))
    assert as_json("doctor")["cache"]["problem"] == ""
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    done = subprocess.run([sys.executable, "-m", "edge.cli", "doctor", "--json"], capture_output=True, text=True)
    made = json.loads(done.stdout)
    assert f"chmod go-w {tmp_path / 'cache'}" in made["cache"]["problem"]
    assert done.returncode == (0 if made["ok"] else 1)
    assert made["ok"] or made["problems"] == [made["cache"]["problem"]] or made["target"] is None


def test_doctor_fails_where_nothing_native_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edge.cli", "doctor", "--json"],
        env={**os.environ, "MSEDGE_TARGET": "none"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1
    assert json.loads(done.stdout)["problems"]


# -- every command ----------------------------------------------------------------------------------------------------

COMMANDS = ("convert", "inspect", "run", "verify", "bench", "doctor", "demo")


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str) -> None:
    stdout, stderr = msedge(command, "--help")
    assert "--json" in stdout and not stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if c not in ("doctor", "demo")])
def test_missing_arguments_are_wrong_usage(command: str) -> None:
    stdout, stderr = msedge(command, code=2)
    assert not stdout and "Usage: msedge" in stderr


def test_a_folder_that_may_not_be_written(small: Small, tmp_path: Path) -> None:
    _, stderr = msedge("convert", small.source, "-o", tmp_path / "none" / "out.mslite", code=3)
    assert "out.mslite" in stderr


def test_an_unexpected_error_is_reported_as_a_bug_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import typer

    def broken(*, as_json: bool = False) -> None:
        raise ZeroDivisionError("by accident")

    with pytest.raises(typer.Exit) as left:
        errors.guarded(broken)(as_json=True)
    stdout, stderr = capsys.readouterr()
    assert left.value.exit_code == 3
    assert "this is a bug in msedge: ZeroDivisionError: by accident" in stderr and "Traceback" not in stderr
    assert json.loads(stdout)["error"]["kind"] == "ZeroDivisionError"
    monkeypatch.setenv("MSEDGE_DEBUG", "1")
    with pytest.raises(typer.Exit):
        errors.guarded(broken)()
    assert "Traceback" in capsys.readouterr().err


def test_a_real_process_keeps_streams_apart(small: Small, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "edge.cli", "convert", str(small.source), "-o", str(tmp_path / "o.mslite"), "--json"],
        env={**os.environ, "NO_COLOR": "1"}, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["bundle_bytes"]
    assert "converting" in done.stderr


def test_a_warning_is_a_line_without_its_place_in_the_source() -> None:
    def shown() -> str:
        return warnings.formatwarning(RuntimeWarning("passed over"), RuntimeWarning, "keeper.py", 93)

    assert errors.guarded(shown)() == "warning: passed over\n" and "keeper.py:93" in shown()
