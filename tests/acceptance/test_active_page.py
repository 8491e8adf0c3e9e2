"""The Python of docs/active-learning.md, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "active-learning.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    exec(text, {})
    said = re.fullmatch(r"(\d+) new labels; the model was right about (\d+)%\n", capsys.readouterr().out)
    assert said and said[1] == "10" and int(said[2]) < 90, "what it is unsure of, it is often wrong about"
