"""What a device keeps of a stream, and requests for labels: nothing is lost, nothing false is believed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lite_runtime._arrays import load_arrays, packed_arrays
from lite_runtime.active import Kept, answers, ask
from lite_runtime.active.keeping import Example, identity
from lite_runtime.errors import InputError, MsedgeError

NAMES = ("cat", "dog", "owl")


def example(number: int, size: int = 4) -> Example:
    row = {"x": np.full(size, number, np.float32)}
    return Example(identity(row), row, float(number), 0)


@given(st.lists(st.tuples(st.integers(0, 40), st.floats(-5, 5)), max_size=60), st.integers(1, 9), st.integers(1, 12))
def test_the_best_of_a_stream_are_kept(stream: list[tuple[int, float]], rows: int, places: int) -> None:
    """At any moment at most `rows` examples in `most_bytes`, and the best that fit; an example counts by its first
    score as long as it is there."""
    kept = Kept(rows, most_bytes=16 * places)
    for number, score in stream:
        kept.offer({"x": np.full(4, number, np.float32)}, score)
        assert len(kept) <= min(rows, places) and kept.bytes == 16 * len(kept)
    unique = len({number for number, _ in stream})
    best = kept.take(99)
    assert len(best) == min(rows, places, unique) and len(kept) == 0 and kept.bytes == 0
    assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
    if best and len(best) == min(rows, places):
        firsts = {number: score for number, score in reversed(stream)}
        if len(stream) == unique:
            assert [one.score for one in best] == sorted(firsts.values(), reverse=True)[: len(best)]


def test_kept_examples_survive_a_restart(tmp_path: Path) -> None:
    kept = Kept(3)
    for number, score in ((1, 0.5), (2, 0.9), (3, 0.1), (4, 0.7), (5, float("nan"))):
        kept.offer({"self": np.full((2, 2), number, np.int8), "file": np.float32([number])}, score, guess=number)
    kept.save(tmp_path / "kept.npz")
    again = Kept(3)
    again.load(tmp_path / "kept.npz")
    one, two = kept.take(9), again.take(9)
    assert [e.id for e in one] == [e.id for e in two] and [e.guess for e in two] == [2, 4, 1]
    (tmp_path / "kept.npz").write_bytes(b"PK\x03\x04nothing")
    with pytest.raises(MsedgeError, match="cannot read"):
        again.load(tmp_path / "kept.npz")
    (tmp_path / "kept.npz").write_bytes(packed_arrays({"0:x": np.ones(2)}))
    with pytest.raises(MsedgeError, match="no score"):
        again.load(tmp_path / "kept.npz")
    with pytest.raises(InputError, match="at least 1 row"):
        Kept(0)


def test_files_of_arrays_are_the_same_for_the_same_arrays(tmp_path: Path) -> None:
    arrays = {"file": np.arange(3), "a/b": np.float16([[1]])}
    (tmp_path / "a.npz").write_bytes(packed_arrays(arrays))
    back = load_arrays(tmp_path / "a.npz")
    assert packed_arrays(arrays) == packed_arrays(back) and back["a/b"].dtype == np.float16
    np.savez(tmp_path / "object.npz", x=np.array([None]))
    with pytest.raises(MsedgeError, match="cannot read"):
        load_arrays(tmp_path / "object.npz")


def test_answers_come_back_by_id(tmp_path: Path) -> None:
    asked = [example(number) for number in range(5)]
    ask(tmp_path / "new" / "r", asked, classes=NAMES, strategy="margin")
    folder = tmp_path / "new" / "r"
    none = answers(folder)
    assert none.labels.shape == (0,) and none.left == tuple(one.id for one in asked)
    (folder / "answers.json").write_text(json.dumps({asked[3].id: "owl", asked[0].id: 1, asked[2].id: None}))
    (folder / "answers.csv").write_text(f"id,label\n{asked[4].id},dog\n{asked[3].id},2\n", encoding="utf-8-sig")
    found = answers(folder)
    assert found.labels.tolist() == [1, 2, 1] and found.inputs["x"][:, 0].tolist() == [0, 3, 4]
    assert found.unknown == (asked[2].id,) and found.left == (asked[1].id,)
    with pytest.raises(MsedgeError, match="has a request already"):
        ask(folder, asked)


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("answers.json", '{"nobody": 1}', "was not asked for"),
        ("answers.json", '{"ID": 3}', "expected one of cat, dog, owl, got '3'"),
        ("answers.json", '{"ID": true}', "got 'True'"),
        ("answers.json", '{"ID": 1.0}', "got '1.0'"),
        ("answers.json", '{"ID": -1}', "got '-1'"),
        ("answers.json", "[1]", "a JSON object, got list"),
        ("answers.json", "{", "expected JSON"),
        ("answers.json", "[" * 100_000, "expected JSON"),
        ("answers.csv", "ID,1\nID,2\n", "line 2: .* two answers"),
        ("answers.csv", "ID\n", "line 1: expected ID,CLASS, got 1 cells"),
        ("answers.csv", "ID,bird\n", "got 'bird'"),
        ("request.json", '{"version": 2}', "version 1, got another"),
        ("request.json", '{"version": 1, "classes": [], "examples": "../x.npz", "items": []}', "name of an .npz"),
    ],
)
def test_damaged_answers_are_refused(tmp_path: Path, file: str, text: str, said: str) -> None:
    asked = [example(number) for number in range(2)]
    ask(tmp_path / "r", asked, classes=NAMES)
    (tmp_path / "r" / file).write_text(text.replace("ID", asked[0].id))
    with pytest.raises(MsedgeError, match=said):
        answers(tmp_path / "r")


def test_examples_that_were_exchanged_are_found(tmp_path: Path) -> None:
    ask(tmp_path / "r", [example(1), example(2)])
    (file,) = (tmp_path / "r").glob("*.npz")
    file.write_bytes(packed_arrays({"x": np.zeros((2, 4), np.float32)}))
    with pytest.raises(MsedgeError, match="that were asked for, got others"):
        answers(tmp_path / "r")
    file.unlink()
    with pytest.raises(MsedgeError, match="cannot read"):
        answers(tmp_path / "r")
    with pytest.raises(MsedgeError, match="nothing to ask"):
        ask(tmp_path / "s", [])
    with pytest.raises(MsedgeError, match="several kinds"):
        ask(tmp_path / "s", [example(1), example(1, size=5)])
    with pytest.raises(MsedgeError, match=r"cannot read .*request"):
        answers(tmp_path / "s")
