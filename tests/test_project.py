"""Properties of the project's files: CI draws the same examples every time, and oracles have upper bounds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib

from hypothesis import settings

from tests.conftest import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_ci_draws_the_same_examples_in_every_run() -> None:
    """`.ci/run` sets CI, and the tests' settings follow it: in this process, and in one with CI set."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"^export CI=true\b", script, re.MULTILINE)
    assert settings().derandomize == bool(os.environ.get("CI"))
    code = "import tests.conftest, hypothesis; print(hypothesis.settings().derandomize)"
    told = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "CI": "true"}, cwd=ROOT, capture_output=True, text=True
    )
    assert told.stdout.split() == ["True"], told.stderr


def test_oracles_have_tested_upper_bounds() -> None:
    """Every oracle of the Makefile is bounded to a minor version: "<2" alone lets in releases that no test has seen."""
    (line,) = re.findall(r"^ORACLES := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    oracles = line.replace("\\\n", "").split()
    assert {"onnx", "onnxruntime", "ai-edge-litert", "openvino"} <= set(oracles)
    wanted = [asked for extra in PROJECT["optional-dependencies"].values() for asked in extra]
    for oracle in oracles:
        (bounds,) = (asked.removeprefix(oracle) for asked in wanted if re.match(re.escape(oracle) + "[<>=~]", asked))
        assert re.search(r"<\d+\.\d+$", bounds), f"{oracle}{bounds}: expected an upper bound like <1.24"
