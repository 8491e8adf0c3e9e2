"""The serving benchmark: the fastest settings of a server are compared, batches are counted, the page says what ran."""

from __future__ import annotations

import base64
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from benchmarks.serving import __main__ as serving
from benchmarks.serving import environments, local, over_grpc, page
from benchmarks.serving.contenders import CONTENDERS, ROWS, Place
from benchmarks.serving.peers._session import Session
from benchmarks.serving.subjects import SUBJECTS
from lite_runtime.errors import InputError, MsedgeError

PEERS = Path(serving.__file__).with_name("peers")
PLACE = Place(Path("m.onnx"), Path("m.mslite"), "x", 8000, 1, sys.executable)


def _tried(rate: float, failures: int = 0, rows: float = 1.0) -> dict[str, Any]:
    tried = {"rate": rate, "failures": failures, "connections": 16, "seconds": 2}
    return {**tried, "rows a call": rows, "most rows": int(rows)}


def test_the_fastest_setting_that_works_is_compared() -> None:
    tried = {
        "one by one": {"binary": _tried(100.0), "json": _tried(50.0)},
        "batching": {"binary": _tried(200.0), "json": _tried(90.0, failures=3)},
        "odd": {"error": "did not start"},
    }
    assert serving.best_variants(tried, ["binary", "json"]) == {"binary": "batching", "json": "one by one"}
    assert serving.best_variants({"a": {"binary": _tried(1.0, 5)}}, ["binary", "json"]) == {"binary": "a"}
    rare = {"a": {"json": _tried(100.0)}, "b": {"json": _tried(200.0, failures=4)}}
    assert serving.best_variants(rare, ["json"]) == {"json": "b"}, "one in a hundred may fail"
    assert serving.best_variants({"a": {"error": "no"}}, ["json"]) == {}


@pytest.mark.parametrize("name", ["MLServer", "LitServe", "BentoML", "Ray Serve"])
def test_every_server_is_tried_with_and_without_batches(name: str) -> None:
    (contender,) = (one for one in CONTENDERS if one.name == name)
    rows = {variant(PLACE)["ROWS"] for variant in contender.variants.values()}
    assert rows == {"1", ROWS} and contender.environment in environments.WANTED
    app = (PEERS / f"{contender.environment.replace('serve', '')}_app.py").exists()
    assert app or (PEERS / f"{contender.environment}_app.py").exists()


def test_batches_of_a_session_are_one_call_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "resnet8.onnx"
    SUBJECTS["ResNet-8"].write(path)
    session = Session(str(path), 1, str(tmp_path / "rows"))
    x = np.random.default_rng(0).random((5, 3, 32, 32), np.float32)
    one, three, last = session.rows([x[:1].ravel(), x[1:4].ravel(), x[4:]])
    assert (len(one), len(three), len(last)) == (1, 3, 1)
    alone = Session(str(path), 1)
    np.testing.assert_allclose(np.concatenate([one, three, last]), alone.run(x), rtol=1e-5, atol=1e-5)
    assert serving._rows_told(tmp_path / "rows") == Counter({5: 1})


@pytest.mark.parametrize("name", list(SUBJECTS))
def test_what_is_served_has_an_open_batch(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    SUBJECTS[name].write(path)
    for value in (*onnx.load(path).graph.input, *onnx.load(path).graph.output):
        assert value.type.tensor_type.shape.dim[0].dim_param


def test_a_fixed_batch_is_refused(tmp_path: Path) -> None:
    from benchmarks.models import lstm2

    onnx.save(lstm2(), tmp_path / "fixed.onnx")
    with pytest.raises(InputError, match="open batch"):
        serving.model_of("fixed", tmp_path / "fixed.onnx", tmp_path, (1,))


def test_environments_are_found_and_their_versions_asked(tmp_path: Path) -> None:
    ours, bare, mlserver = CONTENDERS[:3]
    assert environments.python_of(ours, None) == environments.python_of(bare, tmp_path) == sys.executable
    assert environments.python_of(mlserver, None) is None and environments.python_of(mlserver, tmp_path) is None
    python = tmp_path / "mlserver" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert environments.python_of(mlserver, tmp_path) == str(python)
    found = environments.versions_of(mlserver._replace(packages=("numpy", "no-such-package")), sys.executable)
    assert found == {"numpy": np.__version__, "no-such-package": "not installed"}


def _row(server: str, form: str, rate: float, ratio: float | None = None, failures: int = 0) -> dict[str, Any]:
    row = {"server": server, "form": form, "connections": 16, "rate": rate, "p50": 0.01, "p99": 0.02}
    return {**row, "failures": failures, **({} if ratio is None else {"ratio": ratio, "tail": 1.0})}


RUN = {
    "model": "net", "threads": 1, "ceiling": 5000.0,
    "rows": [
        _row("msedge", "binary", 400.0), _row("msedge", "json", 200.0), _row("MLServer", "binary", 100.0, 4.0),
        _row("MLServer", "json", 250.0, 0.8, failures=7),
    ],
    "trials": {"MLServer": {
        "one by one": {"binary": _tried(90.0), "json": _tried(10.0)},
        "adaptive batching": {"binary": _tried(110.0, rows=8.0), "json": _tried(120.0, rows=9.0)},
        "odd": {"error": "it | broke"},
    }},
    "settings": {"MLServer": {"binary": "adaptive batching", "json": "one by one"}},
}  # fmt: skip
TOLD = {
    "date": "2026-01-01", "machine": {"CPU": "Some 9000"}, "versions": {"MLServer": {"mlserver": "1.7"}},
    "absent": ["LitServe"], "seconds": 5, "rounds": 3, "runs": [RUN],
}  # fmt: skip


def test_the_page_says_what_was_run_and_where_others_are_faster() -> None:
    made = page.figures(TOLD)
    assert "| CPU | Some 9000 |" in made and "| MLServer | mlserver 1.7 |" in made
    assert "left out: LitServe" in made
    assert "Another server answers more requests in 1 of 2 cells: MLServer 0.80 (JSON, 16)." in made
    assert "Requests that failed or were refused: MLServer 7." in made
    assert "| MLServer | adaptive batching | bytes | 110 | 8.0 | 8 | compared |" in made
    assert "| MLServer | adaptive batching | JSON | 120 | 9.0 | 9 |  |" in made
    assert "did not work: it / broke |" in made
    for part in made.split("\n\n"):
        if part.startswith("|"):
            assert len({line.count("|") for line in part.splitlines()}) == 1


def test_the_page_is_written_between_its_marks(tmp_path: Path) -> None:
    with pytest.raises(MsedgeError, match="figures: begin"):
        page.require_page(tmp_path)
    (tmp_path / "serving.md").write_text("a\n<!-- figures: begin -->\nold\n<!-- figures: end -->\nz\n")
    page.write(tmp_path, TOLD)
    assert page.main([str(tmp_path / "serving.json"), "--docs", str(tmp_path)]) == 0
    made = (tmp_path / "serving.md").read_text()
    assert made == f"a\n<!-- figures: begin -->\n{page.figures(TOLD)}\n<!-- figures: end -->\nz\n"
    assert json.loads((tmp_path / "serving.json").read_text()) == TOLD
    assert "net, 16 connections" in (tmp_path / "serving.svg").read_text()


H2LOAD = """finished in 3.00s, 797.50 req/s, 222.87KB/s
requests: 1595 total, 1595 started, 1595 done, 1595 succeeded, 0 failed, 0 errored, 0 timeout
status codes: 1595 2xx, 0 3xx, 0 4xx, 0 5xx
traffic: 445.74KB (456442) total, 7.24KB (7410) headers (space savings 96.14%), {data} data
"""


def test_replies_over_grpc_are_counted_by_their_length() -> None:
    """A refusal has the status 200 too, and no message."""
    spent = [0.001] * 99 + [0.1]
    load = over_grpc.summary(H2LOAD.format(data=f"444KB ({1595 * 205})"), spent, 200, 2.0)
    assert (load.rate, load.p50, load.failures) == (1595 / 2, 0.001, 0)
    half = over_grpc.summary(H2LOAD.format(data=f"222KB ({800 * 205})"), spent, 200, 2.0)
    assert (half.rate, half.failures) == (400, 795)
    with pytest.raises(MsedgeError, match="h2load gave no result"):
        over_grpc.summary("error", [], 200, 2.0)


@pytest.mark.parametrize("form", over_grpc.FORMS)
def test_requests_over_grpc_hold_the_input(form: str) -> None:
    from tritonclient.grpc import service_pb2

    x = np.random.default_rng(0).random((1, 3), np.float32)
    (one,) = (found := service_pb2.ModelInferRequest.FromString(over_grpc.FORMS[form](PLACE, x))).inputs
    held = {
        "raw": lambda: found.raw_input_contents[0],
        "typed": lambda: np.array(one.contents.fp32_contents, np.float32).tobytes(),
        "base64": lambda: base64.b64decode(one.contents.bytes_contents[0]),
    }
    assert held[form]() == x.tobytes() and (found.model_name, one.name) == ("model", "x")


def test_nearby_clients_are_measured_in_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert local.main(["--widths", "256", "--models", "ResNet-8", "--requests", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].split(maxsplit=1) for line in lines[:2]] == [["1", "KiB          bytes"],
                                                                           ["1", "KiB  shared memory"]]  # fmt: skip
    assert [line.split(":")[0].split() for line in lines[2:]] == [["ResNet-8", "computed"], ["ResNet-8", "found"]]
