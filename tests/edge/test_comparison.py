"""The comparison table holds every model, those that fail included."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from benchmarks.comparison import compare, geometric_mean, markdown, models_in, trouble
from edge.contest import Contest
from lite_runtime.errors import InputError
from tests.edge.conftest import Small


def test_the_table_has_a_row_for_every_model(small: Small, tmp_path: Path) -> None:
    shutil.copy(small.source, tmp_path / "a.onnx")
    (tmp_path / "b.onnx").write_bytes(b"no model")
    results = list(compare(models_in(tmp_path), rounds=3, backend="reference"))
    fine, broken = results
    assert isinstance(fine, Contest) and not isinstance(broken, Contest)
    (_, entry) = fine.entries
    assert entry.ratio is not None and geometric_mean(results, "onnxruntime") == pytest.approx(entry.ratio.median)
    assert trouble(fine) == "" and trouble(broken) == "b.onnx did not run"
    lines = markdown(results).splitlines()
    assert lines[2].startswith("| a.onnx | ") and lines[3].startswith("| b.onnx | – ")
    assert len({line.count("|") for line in lines[:4]}) == 1


def test_no_models_is_an_error_and_no_ratio_no_number(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--models"):
        models_in(tmp_path)
    assert math.isnan(geometric_mean([], "onnxruntime"))
