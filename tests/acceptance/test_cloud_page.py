"""docs/cloud.md followed word by word: its commands and its Python, from top to bottom, in one folder."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from typer.testing import CliRunner

import lite_runtime
from edge.cli.app import app
from tests.cloud.models import run_onnx
from tests.conftest import QUICKLY, ROOT

PAGE = Path(__file__).parents[2] / "docs" / "cloud.md"
LONGER = QUICKLY.replace("optimization_level=0", "optimization_level=1")
"""XLA's flags of a page that trains: steps take a fifth of the time, and few are compiled."""


def pieces() -> Iterator[tuple[str, str]]:
    """(language, text) of every fenced block, in order; commands have no language."""
    yield from re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.S | re.M)


def ran(line: str) -> None:
    """A line of a shell: `msedge …`, its output to a file if it says so."""
    words = shlex.split(line, comments=True)
    target = Path(words.pop()) if words[-2:-1] == [">"] else None
    if target is not None:
        words.pop()
    assert words[0] == "msedge", line
    done = CliRunner().invoke(app, words[1:], prog_name="msedge")
    assert done.exit_code == 0, (line, done.stdout, done.stderr, done.exception)
    if target is not None:
        target.write_text(done.stdout, encoding="utf-8")


@pytest.mark.slow
def test_the_page_is_followed_word_by_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, as XLA reads its flags once: 39 CPU seconds, 65 with those of the other tests."""
    if LONGER not in os.environ["XLA_FLAGS"]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
        environment = {**os.environ, "XLA_FLAGS": LONGER}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MSEDGE_RUNS", raising=False)
    names: dict[str, Any] = {}
    followed = 0
    for language, text in pieces():
        assert language in ("", "python", "toml"), f"nothing follows blocks of {language!r}"
        if language == "toml":  # a file, whose first line is its name
            Path(text.partition("\n")[0].removeprefix("# ")).write_text(text, encoding="utf-8")
        elif language == "":
            for line in text.replace("\\\n", " ").splitlines():
                ran(line)
                followed += 1
        elif find_spec("torch") is not None or not re.search(r"torch|_weights", text):
            exec(text, names)
            followed += 1
    assert followed >= 14
    x = names["x"][:5]
    (logits,) = lite_runtime.load("model.mslite").run({"x": x}).values()
    np.testing.assert_allclose(logits, run_onnx(ir.load("model.onnx"), x=x)[0], atol=1e-4)
    assert names["trainer"].steps_done and Path("runs.html").is_file() and any(Path("logs").iterdir())
