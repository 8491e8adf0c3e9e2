"""The Python of docs/explain.md, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "explain.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    names: dict[str, object] = {}
    exec(text, names)
    said = capsys.readouterr().out
    (score, rows, gap) = re.findall(r"score ([\d.]+), (\d+) rows, completeness error (\S+)", said)[0]
    assert float(score) > 1 and int(rows) == 52 and abs(float(gap)) < 0.05
    areas = re.findall(r"^(\w+): insertion ([\d.]+), deletion ([\d.]+)$", said, re.M)
    assert [name for name, _, _ in areas] == ["saliency", "integrated_gradients", "occlusion", "kernel_shap"]
    assert all(float(insertion) > float(deletion) for _, insertion, deletion in areas)
