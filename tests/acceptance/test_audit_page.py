"""The Python of docs/audit.md, run, and `msedge audit` on the files that it leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    names: dict[str, object] = {}
    for text in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M):
        exec(text, names)
    said = capsys.readouterr().out
    assert Path("digits.mslite").is_file()
    assert said.count("fine") + said.count("MASKED") == 5
    assert re.search(r"wrong within 0\.1: [1-9]\d*\.\d%", said)
    assert float(re.search(r"LiRA online +AUC (0\.\d+)", said)[1]) > 0.55
    gains = [int(gain) for gain in re.findall(r"dB, ([+-]\d+) above chance", said)]
    assert gains[0] > 50 and max(gains[1:]) <= 0 and len(gains) == 3
    (limits,) = re.findall(r"^```toml\n(.*?)^```$", page, re.S | re.M)
    audited(limits.replace("device", "half").replace("gaussian_noise", "noise"))


def audited(limits: str) -> None:
    """The page's limits, with the names that these data have."""
    from edge.cli.app import app

    Path("limits.toml").write_text("\n".join(line for line in limits.splitlines() if "quantising" not in line))
    words = ["audit", "digits.mslite", "--data", "digits.npz", "--limits", "limits.toml", "-o", "audit.html"]
    done = CliRunner().invoke(app, [*words, "--without", "attacks"], prog_name="msedge")
    assert done.exit_code in (0, 1) and done.output.count("held: ") + done.output.count("BROKEN: ") == 3
    assert Path("audit.html").is_file()
