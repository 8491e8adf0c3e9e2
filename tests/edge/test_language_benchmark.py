"""The load program for language models, with a small one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.serving import language
from lite_runtime import bundle
from tests.language.talking import talking_bundle
from tests.language.tiny import Tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("language") / "tiny.mslite"
    path.write_bytes(talking_bundle())
    return path


def test_streams_alone_together_and_with_adapters(model: Path, tmp_path: Path) -> None:
    options = [
        "--threads",
        "1",
        "--streams",
        "3",
        "--rounds",
        "2",
        "--prompt",
        "9",
        "--tokens",
        "7",
        "--temperature",
        "0.7",
    ]
    assert language.main([str(model), *options, "--json", str(tmp_path / "a.json")]) == 0
    told = json.loads((tmp_path / "a.json").read_text())
    assert list(told["turns"]) == ["1 stream", "3 streams", "3 streams, 3 adapters"]
    for streams, made in zip((1, 3, 3), told["turns"].values(), strict=True):
        assert [len(turn["first"]) for turn in made] == [streams] * 2
        assert all(turn["rate"] > 0 and min(turn["first"]) > 0 for turn in made)
    assert list(told["ratios"]) == ["3 streams / 1 stream", "3 streams, 3 adapters / 3 streams"]


def test_a_short_soak_test_finds_nothing(model: Path, tmp_path: Path) -> None:
    options = ["--threads", "1", "--streams", "6", "--soak", "150", "--json", str(tmp_path / "a.json")]
    assert language.main([str(model), *options]) == 0
    told = json.loads((tmp_path / "a.json").read_text())
    assert told["problems"] == [] and told["requests"] == 150
    assert sum(told["outcomes"].values()) == 150 and set(told["outcomes"]) == {"completed", "disconnected"}
    points = [language.Point(*point) for point in told["points"]]
    assert len(points) == 21 and points[-1].requests == 150 and all(point.resident > 0 for point in points)
    assert told["metrics"]["adapters"] == 4 and list(told["pages"]) == ["start", "end"]


def points(early: int, end: int) -> list[language.Point]:
    """Four, with so many MiB of memory in the third quarter and in the last."""
    sizes = {10: 50, 60: early, 80: end, 100: 90}
    return [language.Point(number, number / 9, size << 20, 8) for number, size in sizes.items()]


def test_what_a_soak_test_finds() -> None:
    good = language.Soaked(
        points=points(100, 101), pages={"start": (8, 1), "end": (8, 1)},
        metrics={"running": 0, "waiting": 0},
    )  # fmt: skip
    assert good.problems == []
    for change in (
        {"points": points(100, 200)},
        {"metrics": {"running": 1, "waiting": 0}}, {"errors": ["x"]}, {"differing": 1},
    ):  # fmt: skip
        assert len(language.Soaked(**{**vars(good), **change}).problems) == 1


def test_other_bundles_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other.mslite").write_bytes(bundle.write(None, {"predict": Tiny().graph}))
    assert language.main([str(tmp_path / "other.mslite")]) == 3
    assert "expected a bundle with a language model" in capsys.readouterr().err
