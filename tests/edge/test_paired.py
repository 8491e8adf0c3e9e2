"""Two versions turn by turn: each runs from its own checkout, and the statistics are right."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lite_runtime
from benchmarks.paired import __main__ as paired
from benchmarks.paired.verdicts import Compared, compared, verdict
from benchmarks.paired.worker import Worker
from lite_runtime.native import build
from tests.edge.conftest import Small

ROOT = Path(__file__).parents[2]
PACKAGE = """
import numpy as np

class MsedgeError(Exception): pass

class Value:
    name, dtype, shape = "x", "float32", ("n", 3)

class Model:
    def inputs(self): return (Value(),)
    def run(self, inputs): return {{"y": inputs["x"] + {add}}}

def load(path, threads): return Model()
"""


def _rounds(ratio: float, seed: int, count: int = 40, noise: float = 0.02) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    before = 1e-3 * np.exp(noise * rng.standard_normal(count))
    return [(b, float(b * ratio * np.exp(noise * rng.standard_normal()))) for b in before]


def test_a_difference_is_found_and_its_interval_holds_it() -> None:
    found = compared([_rounds(1.05, seed) for seed in range(3)])
    assert found.low < 1.05 < found.high and found.rounds == 120
    assert found.before == pytest.approx(1e-3, rel=0.02) and found.after == pytest.approx(1.05e-3, rel=0.02)
    assert verdict(found, 0.01) == "slower" and verdict(found, 0.2) == "within"
    assert verdict(compared([_rounds(0.9, 1)]), 0.01) == "faster"
    assert found == compared([_rounds(1.05, seed) for seed in range(3)]), "the same times, the same interval"


def test_starts_that_disagree_widen_the_interval() -> None:
    agree = compared([_rounds(1.0, seed, noise=0.001) for seed in range(4)])
    apart = compared([_rounds(ratio, seed, noise=0.001) for seed, ratio in enumerate((0.97, 0.99, 1.01, 1.03))])
    assert verdict(agree, 0.01) == "within" and verdict(apart, 0.01) == "undecided"
    assert apart.high - apart.low > 10 * (agree.high - agree.low)


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    held = [compared([_rounds(1.02, 10 * i + k, count=15) for k in range(4)]) for i in range(60)]
    assert sum(one.low <= 1.02 <= one.high for one in held) >= 50


def test_no_rounds_are_no_comparison() -> None:
    for none in ([], [[]]):
        with pytest.raises(ValueError, match="one round"):
            compared(none)


def _setting(rounds: int = 2) -> paired.Setting:
    return paired.Setting(1, "run", rounds, 0.001, 0.0, None)


def test_starts_go_on_until_a_row_is_decided() -> None:
    def start(ratios: Iterator[float]) -> paired._Started:
        return paired._Started(_rounds(next(ratios), 0, noise=0.0), 0.0)

    def row(*ratios: float) -> paired.Row:
        left = iter(ratios)
        return paired.measured("m", lambda number: start(left), _setting(), fewest=2, most=4, tolerance=0.01)

    decided, undecided = row(1.0, 1.0), row(0.95, 1.05, 0.95, 1.05)
    assert (decided.verdict, decided.starts) == ("within", 2)
    assert (undecided.verdict, undecided.starts) == ("undecided", 4)
    assert row(1.1, 1.1).bad and not row(0.9, 0.9).bad


def _checkout(folder: Path, add: int) -> paired.Side:
    (folder / "lite_runtime").mkdir(parents=True)
    (folder / "lite_runtime" / "__init__.py").write_text(PACKAGE.format(add=add))
    return paired.Side(folder, sys.executable, folder / "kernels")


def test_each_version_runs_from_its_own_checkout(tmp_path: Path) -> None:
    sides = _checkout(tmp_path / "old", 1), _checkout(tmp_path / "new", 2)
    for side in sides:
        with paired._Process(side) as process:
            said = process.ask(load="any", threads=1, call="run", outputs=str(tmp_path / "y.npz"))
        assert said["from"] == str((side.checkout / "lite_runtime").resolve())
    found = paired._start(sides, (tmp_path, tmp_path), _setting(3))
    assert len(found.rounds) == 3 and all(seconds > 0 for pair in found.rounds for seconds in pair)
    assert found.difference > 0.5, "one adds 1, the other 2"
    assert paired._start((sides[0], sides[0]), (tmp_path, tmp_path), _setting()).difference == 0


def test_a_package_of_another_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match="expected lite_runtime from"):
        Worker(str(tmp_path))._own(lite_runtime)
    assert Worker(str(ROOT))._own(lite_runtime) == str(ROOT / "lite_runtime")


@pytest.mark.parametrize("call", ["run", "bind"])
def test_one_checkout_twice_runs_a_real_model(
    call: str, small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        paired, "Side", lambda checkout, python, cache: _SIDE(checkout, python, Path(build.cache_folder()))
    )
    models = tmp_path / "models"
    models.mkdir()
    (models / "small.onnx").write_bytes(small.source.read_bytes())
    (models / "broken.onnx").write_bytes(b"no model")
    figures = tmp_path / "figures.json"
    code = paired.main([
        f"--before={ROOT}", f"--after={ROOT}", f"--models={models}", "--threads=1", f"--call={call}", "--starts=2",
        "--most-starts=2", "--rounds=2", "--turn=0.002", "--wake=0", f"--work={tmp_path / 'work'}", f"--json={figures}",
    ])  # fmt: skip
    broken, fine = json.loads(figures.read_text())["rows"]
    assert code == 1 and broken["verdict"] == "did not run" and "before" in broken["error"]
    assert fine["difference"] == 0 and fine["starts"] == 2 and fine["low"] <= fine["ratio"] <= fine["high"]
    assert "Worst row: small.onnx" in capsys.readouterr().out


_SIDE = paired.Side


def test_what_cannot_be_compared_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert paired.main([f"--before={tmp_path}", f"--models={tmp_path}"]) == 3
    assert "expected a checkout" in capsys.readouterr().err
    assert paired.main([f"--before={ROOT}", f"--after={ROOT}", f"--models={tmp_path}"]) == 3
    assert "--models" in capsys.readouterr().err


def test_the_table_names_the_worst_row_and_counts_verdicts() -> None:
    rows = [
        paired.Row("a.onnx", 1, Compared(1e-3, 1e-3, 1.0, 0.995, 1.004, 40), "within", starts=2),
        paired.Row("b.onnx", 2, Compared(1e-3, 1.1e-3, 1.1, 1.05, 1.2, 40), "slower", 1e-3, starts=2),
        paired.Row("c.onnx", 1, None, "did not run", error="x | y"),
    ]
    made = paired.table(rows, 0.01)
    assert len({line.count("|") for line in made.splitlines() if line.startswith("|")}) == 1
    assert "3 rows: 1 within 1.0%, 1 slower by more than 1.0%, 0 faster" in made and "1 did not run" in made
    assert "Worst row: b.onnx, 2 thread(s): 1.1000" in made and "differ by 1e-03" in made
    assert made.index("b.onnx") < made.index("a.onnx") < made.index("c.onnx")
