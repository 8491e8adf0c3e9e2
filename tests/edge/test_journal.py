"""Figures are saved as they are measured, and never mixed with those of other conditions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.journal import Journal, TimeIsUp
from benchmarks.machine import code, cpu, facts, versions
from lite_runtime.errors import MsedgeError


def _never() -> None:
    raise AssertionError("measured again")


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "kept.jsonl"
    with Journal(path, {"rounds": 3}) as journal:
        assert journal.get("a", 1, measure=lambda: {"ms": np.float32(2.5)}) == {"ms": 2.5}
        assert math.isnan(journal.get("b", measure=lambda: math.nan))
    with path.open("a") as file:
        file.write('{"key": "c", "fig')  # stopped in the middle of a line
    with Journal(path, {"rounds": 3}) as journal:
        assert journal.get("a", 1, measure=_never) == {"ms": 2.5} and len(journal) == 2
        assert math.isnan(journal.get("b", measure=_never))
        assert journal.get("c", measure=lambda: "new") == "new"
    with Journal(path, {"rounds": 3}) as journal:
        assert journal.get("c", measure=_never) == "new"
    journal.remove()
    assert not path.exists()


def test_other_conditions_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    Journal(path, {"rounds": 3, "machine": {"CPU": "a"}}).__exit__(None, None, None)
    with pytest.raises(MsedgeError, match=r"other conditions \(machine\)"):
        Journal(path, {"rounds": 3, "machine": {"CPU": "b"}})
    path.write_text("no journal\n")
    with pytest.raises(MsedgeError, match="not a journal"):
        Journal(path, {})


def test_nothing_new_starts_when_the_time_is_up(tmp_path: Path) -> None:
    path = tmp_path / "kept.jsonl"
    with Journal(path, {}) as journal:
        journal.get("a", measure=lambda: 1)
    with Journal(path, {}, minutes=-1) as journal:
        assert journal.get("a", measure=_never) == 1
        with pytest.raises(TimeIsUp, match="Run the same command again"):
            journal.get("b", measure=_never)
    with Journal(None, {}, minutes=-1) as journal, pytest.raises(TimeIsUp, match="nothing was saved"):
        journal.get("b", measure=_never)


def test_the_processor_is_named_by_its_numbers() -> None:
    lines = ("vendor_id : AuthenticAMD", "cpu family : 25", "model : 17", "model name : AMD EPYC", "stepping : 1")
    text = "\n".join(lines) + "\n\n"
    assert cpu(text + text.replace("17", "1")) == "AMD EPYC (Zen 4, Genoa, AuthenticAMD family 25 model 17 stepping 1)"
    unknown = text.replace("25", "99")
    assert cpu(unknown) == "AMD EPYC (AuthenticAMD family 99 model 17 stepping 1)"
    assert cpu("model name : Some CPU\n") == "Some CPU"


def test_machine_and_versions_are_whole() -> None:
    assert {"CPU", "cores", "kernel", "msedge's kernels are built for"} <= set(facts())
    found = versions()
    assert {"Python", "numpy", "onnxruntime", "ai-edge-litert", "openvino"} <= set(found)
    assert versions(["no-such-package"])["no-such-package"] == "not installed"


def test_a_digest_tells_versions_of_the_sources_apart(tmp_path: Path) -> None:
    (tmp_path / "lite_runtime").mkdir()
    source = tmp_path / "lite_runtime" / "a.py"
    source.write_text("a = 1")
    before = code(tmp_path)
    assert before == code(tmp_path)
    source.write_text("a = 2")
    assert code(tmp_path) != before
