"""The Python of docs/audit.md, run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for text in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M):
        exec(text, names)
    said = capsys.readouterr().out
    assert Path("digits.mslite").is_file()
    assert said.count("fine") + said.count("MASKED") == 5
    assert re.search(r"wrong within 0\.1: [1-9]\d*\.\d%", said)
    assert float(re.search(r"LiRA online +AUC (0\.\d+)", said)[1]) > 0.55
    gains = [int(gain) for gain in re.findall(r"dB, ([+-]\d+) above chance", said)]
    assert gains[0] > 50 and max(gains[1:]) <= 0 and len(gains) == 3
