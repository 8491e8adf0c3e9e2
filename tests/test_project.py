"""Properties of the project's files: CI draws the same examples every time, and oracles have upper bounds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

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


OURS = Path(__file__).name
INSTALLS = re.compile(r"(?:pip|pipx|uv)3? (?:install|download|wheel|run|add|tool install)\b([^\n#`]*)")


def test_nothing_tells_to_install_msedge_by_its_name() -> None:
    """Nobody owns the names on a package index: whoever takes them would run code wherever our words are followed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    wrong = []
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.suffix in (".py", ".md", ".toml", ".yaml", ".service", "") and path.is_file() and path.name != OURS:
            wrong += [f"{name}: {found}" for found in by_name(path.read_text("utf-8", "replace"))]
    assert wrong == []


def by_name(text: str) -> list[str]:
    """The words of commands that install msedge from an index."""
    found = []
    for words in INSTALLS.findall(re.sub(r"\\\n", " ", text)):
        for word in re.findall(r"[^\s'\"`]+", words):
            if re.fullmatch(r"msedge(?:[-_](?:runtime|federated))?(?:\[[^\]]*\])?(?:[=<>~].*)?", word):
                found.append(f"pip install{words}")
    return found


def test_a_name_on_an_index_is_found() -> None:
    wrongs = ("pip install msedge", "pip install 'msedge[serve]'", "uv add msedge-runtime==1", "pip install -U msedge")
    for wrong in wrongs:
        assert by_name(f"text `{wrong}` text")
    for right in ("pip install './msedge-0.1.0-py3-none-any.whl[serve]'", "pip install '.[all]'", "pip install numba"):
        assert not by_name(right)


def test_pages_name_the_present_wheel() -> None:
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "deploy").iterdir()]:
        found = set(re.findall(r"msedge(?:_runtime|_federated)?-([0-9][^-*]*)-py3", path.read_text("utf-8")))
        assert found <= {PROJECT["version"]}, path.name


def test_oracles_have_tested_upper_bounds() -> None:
    """Every oracle of the Makefile is bounded to a minor version: "<2" alone lets in releases that no test has seen."""
    (line,) = re.findall(r"^ORACLES := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    oracles = line.replace("\\\n", "").split()
    assert {"onnx", "onnxruntime", "ai-edge-litert", "openvino"} <= set(oracles)
    wanted = [asked for extra in PROJECT["optional-dependencies"].values() for asked in extra]
    for oracle in oracles:
        (bounds,) = (asked.removeprefix(oracle) for asked in wanted if re.match(re.escape(oracle) + "[<>=~]", asked))
        assert re.search(r"<\d+\.\d+$", bounds), f"{oracle}{bounds}: expected an upper bound like <1.24"
