"""The section on federated rounds of an audit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import converter
from cloud import zoo
from cloud.audit.files import Settings, open_subject
from cloud.audit.parts import federation
from cloud.audit.parts.federation import LEAST, PART
from cloud.audit.section import Clock, Section
from cloud.audit.subject import Data, Kind, Subject
from cloud.audit.victim import open_bundle
from lite_runtime.errors import MsedgeError

Digits = tuple[np.ndarray, np.ndarray]
RUN = """[model]
bundle = "dense.mslite"
[local]
steps = 2
batch = 2
[rounds]
minimum = 5
"""
TREES = """[trees]
features = 64
objective = "binary:logistic"
[report]
model = "m.json"
"""


def dense(shape: tuple[int, ...] = (1, 8, 8)) -> bytes:
    b = zoo.Builder("dense", 0)
    flat = b.op("Flatten", b.input("x", ("batch", *shape)), shape=("batch", int(np.prod(shape))), axis=1)
    model = b.model(logits=b.dense(b.relu(b.dense(flat, 48, name="hidden")), 10, name="head"))
    return converter.convert(model, trainable="*").bundle


def cnn() -> bytes:
    b = zoo.Builder("cnn", 0)
    y = b.relu(b.conv(b.input("x", ("batch", 1, 8, 8)), 12, 3, name="first", bias=True))
    model = b.model(logits=b.dense(b.op("Flatten", y, shape=("batch", 768), axis=1), 10, name="head"))
    return converter.convert(model, trainable="*").bundle


@pytest.fixture(scope="module")
def folder(digits: Digits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that can be trained, and digits."""
    where = tmp_path_factory.mktemp("federation")
    (where / "dense.mslite").write_bytes(dense())
    np.savez(where / "digits.npz", x=digits[0].reshape(-1, 1, 8, 8), y=digits[1])
    return where


def opened(folder: Path, run: str = "") -> Subject:
    if run:
        (folder / "run.toml").write_text(RUN + run)
    settings = Settings(kind="image", federation=folder / "run.toml" if run else None)
    return open_subject(folder / "dense.mslite", folder / "digits.npz", settings)[0]


def measured(subject: Subject) -> Section:
    found = PART.measure(subject, Clock())
    assert not found.undone and set(found.figures) == set(PART.figures(subject))
    return found


def test_what_protects_and_what_does_not(folder: Path) -> None:
    found = measured(opened(folder))
    for name in ("plain", "int8"):
        assert found.figures[f"{name}.recovered"] == found.figures[f"{name}.identified"] == 1
        assert found.figures[f"{name}.psnr"] > 40 and found.figures[f"{name}.labels"] == 1
    for name in ("noise", "secure"):
        assert found.figures[f"{name}.recovered"] == 0 and found.figures[f"{name}.gain"] <= 0.5
        assert found.figures[f"{name}.identified"] <= 0.2
    verdicts = {row[0]: row[-1] for row in found.tables[0].rows}
    assert verdicts["none"] == "gives examples back"
    assert verdicts["clip 1, local noise 0.5"] == verdicts["secure sums, a device's message"] == "no better than chance"
    assert any("Name the protection of your run by --federation" in text for text in found.warnings)
    assert found.figures["secure_sum.identified"] > 0.2
    assert any(text.startswith("A secure sum of 10 devices with one example each") for text in found.warnings)
    assert len(found.pictures) == 5 and found.pictures[0].caption.startswith("none: 10 of 10 given back")
    above, below = found.pictures[0].pixels[:8].astype(int), found.pictures[0].pixels[10:].astype(int)
    assert np.abs(above - below).max() <= 2 and above.std() > 50
    noisy = found.pictures[2].pixels.astype(int)
    assert np.abs(noisy[:8] - noisy[10:]).mean() > 40


def test_a_seed_decides_all_but_masks(folder: Path) -> None:
    one, other = (measured(opened(folder)).figures for _ in range(2))
    assert {n: v for n, v in one.items() if "secure" not in n} == {n: v for n, v in other.items() if "secure" not in n}


def test_the_protection_that_a_run_states(folder: Path) -> None:
    """Noise is stated as epsilon; what the next model shows has the server's noise, what the server has does not."""
    open_run = measured(opened(folder, "[codec]\nup = ['int8']\n"))
    assert open_run.figures["stated.recovered"] > 0.2
    assert open_run.tables[0].rows[-1][1:5] == (5, 2, round(open_run.figures["stated.recovered"] * 10), 10)
    assert any(
        text.startswith("Under this run's own protection, a device's message gives") for text in open_run.warnings
    )
    private = "[privacy]\nclip = 1.0\nnoise = 'central'\nepsilon = 4.0\n[report]\njson = 'never.json'\n"
    central = measured(opened(folder, private))
    assert central.figures["stated.recovered"] > 0.2 and central.figures["stated_model.recovered"] == 0
    assert central.figures["stated_model.gain"] < 0
    assert not (folder / "never.json").exists()
    local = measured(opened(folder, private.replace("central", "local")))
    assert local.figures["stated.recovered"] == 0 and not any("run's own" in text for text in local.warnings)


def test_the_run_of_its_own_shards(folder: Path, digits: Digits) -> None:
    """A device with one example gives away that one, whatever the size of a batch."""
    np.savez(folder / "shards.npz", x=digits[0][:60].reshape(-1, 1, 8, 8), labels=digits[1][:60].astype(np.int64),
             device=np.array(["a", *["b"] * 29, *["c"] * 30]))  # fmt: skip
    found = measured(opened(folder, "[data]\nshards = 'shards.npz'\n"))
    assert found.tables[0].rows[-1][1:3] == (5, 1) and found.figures["stated.recovered"] == 1


@pytest.mark.parametrize(("kind", "shape"), [("table", (64,)), ("series", (4, 16))])
def test_figures_of_inputs_that_are_no_images(
    digits: Digits, tmp_path: Path, kind: Kind, shape: tuple[int, ...]
) -> None:
    (tmp_path / "m.mslite").write_bytes(dense(shape))
    x = digits[0].reshape(-1, *shape) * np.linspace(1, 1000, shape[-1], dtype=np.float32)  # units that differ
    data, span = Data("d", x, digits[1]), (0.0, float(x.max()))
    path = tmp_path / "m.mslite"
    subject = Subject("m", open_bundle(path), data, kind, span, 0.1, training=path)
    found = measured(subject)
    assert found.figures["plain.error"] < 0.05 and found.figures["noise.error"] > 0.9 and not found.pictures
    assert found.figures["plain.recovered"] == 1 and found.figures["noise.recovered"] == 0
    if kind == "table":
        first = found.tables[1].rows[:20]
        np.testing.assert_allclose([row[2] for row in first], [row[1] for row in first], rtol=0.02, atol=0.5)
    else:
        series = found.curves[0].series
        np.testing.assert_allclose(series["given back"], series["original"], rtol=0.02, atol=0.5)


def test_a_search_takes_the_time_that_there_is(digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.mslite").write_bytes(cnn())
    data = Data("d", digits[0].reshape(-1, 1, 8, 8), digits[1])
    subject = Subject("m", open_bundle(tmp_path / "m.mslite"), data, "image", (0.0, 1.0), 0.1,
                      training=tmp_path / "m.mslite")  # fmt: skip
    ticks = iter(range(10_000))
    short = PART.measure(subject, Clock(1.0, now=lambda: next(ticks)))
    assert not short.figures and "raise --budget" in short.undone[0]
    monkeypatch.setattr(federation, "STEPS", (100,))
    monkeypatch.setattr(federation, "STANDARD", tuple(one for one in federation.STANDARD if "secure" not in one.name))
    found = measured(subject)
    assert found.figures["plain.gain"] > 3 > 0 > found.figures["noise.gain"]
    assert found.figures["plain.identified"] > 0.5 > found.figures["noise.identified"]
    assert "By a search of 100 steps" in found.notes[0]


def test_what_cannot_be_measured_says_why(folder: Path, tmp_path: Path, digits: Digits) -> None:
    subject = opened(folder)
    assert PART.lacking(subject) == "" and "--trainable" in PART.lacking(replace(subject, training=None))
    few = Data("few", subject.data.x[: LEAST - 1], subject.data.y[: LEAST - 1])
    assert f"needs {LEAST} examples" in PART.lacking(replace(subject, data=few))
    (tmp_path / "plain.mslite").write_bytes(converter.convert(zoo.mlp(64, 10, [8])).bundle)
    np.savez(tmp_path / "flat.npz", x=digits[0], y=digits[1])
    assert open_subject(tmp_path / "plain.mslite", tmp_path / "flat.npz")[0].training is None
    words = {
        TREES: "a run that trains a bundle, got one of .trees",
        RUN.replace("dense", "plain"): "lacks gradients",
        RUN.replace("dense.mslite", str(folder / "dense.mslite")): "expected inputs of shape",
    }
    for text, message in words.items():
        (tmp_path / "run.toml").write_text(text)
        with pytest.raises(MsedgeError, match=message):
            open_subject(tmp_path / "plain.mslite", tmp_path / "flat.npz", Settings(federation=tmp_path / "run.toml"))
    unread = PART.measure(opened(folder, "[data]\nshards = 'dense.mslite'\n"), Clock())
    assert unread.undone[0].startswith("This run's own protection: ") and unread.figures["plain.recovered"] == 1
    scaffold = PART.measure(opened(folder, "[algorithm]\nname = 'scaffold'\n"), Clock())
    assert "its update is no gradient" in scaffold.undone[0] and "stated.recovered" not in scaffold.figures
    assert scaffold.figures["plain.recovered"] == 1
