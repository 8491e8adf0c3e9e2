"""`msedge bench` of a language model: what is measured, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.measuring import language
from tests.edge.test_cli import as_json, msedge
from tests.language.talking import talking_bundle
from tests.language.tiny import Sizes


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "tiny.mslite"
    path.write_bytes(talking_bundle(Sizes(context=600)))
    return path


def test_a_prompt_and_an_answer_are_timed(model: Path) -> None:
    found = as_json("bench", model, "--rounds", "3", "--threads", "2")
    (one,) = found["runs"]
    assert (found["prompt"], found["generated"]) == (512, 64)
    assert (one["name"], one["threads"], one["same"]) == ("msedge", 2, 64)
    assert one["start"] > one["prefill"] > one["token"] > 0 and one["memory"] > 10 << 20


def test_a_table_for_people(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = language.Answering("msedge", 1, 0.5, 0.25, 0.01, 50 << 20, 64)
    peer = language.Answering("llama.cpp", 1, 0.5, 0.5, 0.02, 60 << 20, 12)
    monkeypatch.setattr(language, "answering", lambda *args, **named: [one, peer])
    stdout, _ = msedge("bench", model, "--against", "llama.cpp", "--source", "m.gguf")
    assert (
        "2048 tokens/s" in stdout and "100.0 tokens/s" in stdout and "llama.cpp" in stdout and "50.0 tokens/s" in stdout
    )


def test_what_cannot_be_measured(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--source" in msedge("bench", model, "--against", "llama.cpp", code=3)[1]
    assert "NAME=MODEL" in msedge("bench", model, "--against", "onnxruntime-genai,llama.cpp=m.gguf", code=3)[1]
    monkeypatch.setattr(language.importlib.util, "find_spec", lambda name: name)
    own = f"onnxruntime-genai={tmp_path}"
    assert "a folder of its model builder" in msedge("bench", model, "--against", own, code=3)[1]
    monkeypatch.setattr(language.importlib.util, "find_spec", lambda name: None)
    assert "pip install onnxruntime-genai" in msedge("bench", model, "--against", own, code=3)[1]
    assert "llama.cpp, openvino-genai" in msedge("bench", model, "--against", "onnxruntime", code=2)[1]
    monkeypatch.setenv("MSEDGE_NODE_MODULES", str(tmp_path))
    monkeypatch.setattr(language.shutil, "which", lambda name: "node")
    asked = ("bench", model, "--against", "llama.cpp", "--source", "m.gguf")
    assert "npm install node-llama-cpp" in msedge(*asked, code=3)[1]
    (tmp_path / "node-llama-cpp").mkdir()
    monkeypatch.setattr(language.shutil, "which", lambda name: "false")
    assert "llama.cpp failed in its process" in msedge(*asked, code=3)[1]
    monkeypatch.setattr(language.shutil, "which", lambda name: "true")
    assert "llama.cpp printed no figures" in msedge(*asked, code=3)[1]
    monkeypatch.setattr(language.shutil, "which", lambda name: sys.executable)
    (tmp_path / "_tokens.mjs").write_text("while True: pass")
    (tmp_path / "_tokens.py").write_text("""print('{"tokens": []}')""")
    monkeypatch.setattr(language, "_SCRIPT", tmp_path / "_tokens.py")
    monkeypatch.setattr(language, "_MINUTES", 0.01)
    assert "llama.cpp has not ended after 0.01 minutes" in msedge(*asked, code=3)[1]
    monkeypatch.undo()
    small = tmp_path / "small.mslite"
    small.write_bytes(talking_bundle())
    assert "a context of 576 tokens" in msedge("bench", small, code=3)[1]
