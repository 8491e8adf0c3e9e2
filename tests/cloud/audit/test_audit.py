"""Whole audits: sections, limits, data that do not fit, and changes by quantising that were planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import converter
import lite_runtime
from cloud import zoo
from cloud.audit import measure_calibration
from cloud.audit.attacks import results
from cloud.audit.attacks.turned import ChannelsFirst
from cloud.audit.audit import Audit, audit, chosen, figures_of
from cloud.audit.files.limits import parsed_limit, read_limits
from cloud.audit.files.opening import Settings, open_subject
from cloud.audit.parts import PARTS, attacks, calibration, quantising
from cloud.audit.section import Clock, Part, Picture, Section, Table
from cloud.audit.subject import Kind, Subject
from cloud.audit.victim import BlackBox, WhiteBox
from cloud.errors import AuditError
from lite_runtime.calibration import with_calibration
from lite_runtime.calibration.description import Calibration, Threshold
from lite_runtime.calibration.scores import energy
from tests.cloud.models import parsed

Rows = tuple[np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, network: ir.Model, digits: Rows) -> Path:
    """Bundles in float and int8, the ONNX model, and 300 examples with columns."""
    where = tmp_path_factory.mktemp("audit")
    x, y = digits[0][:300], digits[1][:300]
    ir.save(network, where / "float.onnx")
    (where / "float.mslite").write_bytes(converter.convert(network).bundle)
    found = converter.convert(network, quantize="int8", calibration={"x": digits[0][300:400]})
    (where / "int8.mslite").write_bytes(found.bundle)
    device = np.array(["alone"] + ["old"] * 199 + ["new"] * 100)
    (where / "trained.mslite").write_bytes(converter.convert(network, trainable="*").bundle)
    (where / "run.toml").write_text("[model]\nbundle = 'trained.mslite'\n[local]\nsteps = 1\nbatch = 4\n")
    np.savez(where / "train.npz", x=digits[0][300:], y=digits[1][300:])
    np.savez(where / "data.npz", x=x, y=y, device=device, light=np.linspace(0, 1, 300), id=np.arange(300))
    return where


@pytest.fixture(scope="module")
def whole(folder: Path) -> Audit:
    """Every part, of the integer bundle with its float twin and the run that trains that."""
    settings = Settings(
        twin=folder / "float.onnx", members=folder / "train.npz", federation=folder / "run.toml", epsilon=0.1
    )
    subject, notes = open_subject(folder / "int8.mslite", folder / "data.npz", settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks, "MOST_ROWS", 32)
        patch.setattr(attacks, "NEAR_ROWS", 4)
        patch.setattr(attacks, "STEPS", {"fgsm": 1, "auto_pgd": 20, "auto_pgd_margin": 20, "square": 200, "pgd": 10})
        return audit(subject, notes=notes)


def test_every_part_is_measured_and_says_what_it_measures(whole: Audit) -> None:
    assert [section.name for section in whole.sections] == [part.name for part in PARTS]
    assert not [text for section in whole.sections for text in section.undone]
    assert set(whole.figures) <= set(whole.meanings)
    assert set(whole.meanings) - set(whole.figures) <= {"slices.worst", "slices.lost_worst", "groups.device.worst"}
    assert json.loads(json.dumps(whole.as_data()))["held"] is True
    assert whole.figures["federation.plain.recovered"] > 0.7 > 0.1 > whole.figures["federation.noise.recovered"]
    assert whole.figures["accuracy.examples"] == 300 and whole.figures["accuracy.accuracy"] > 0.9
    assert whole.figures["accuracy.gap"] == whole.figures["accuracy.members"] - whole.figures["accuracy.accuracy"]
    assert any("'id'" in note for note in whole.notes)


def test_attacks_are_put_to_the_deployed_file(whole: Audit) -> None:
    figures = whole.figures
    assert figures["attacks.robust"] <= min(figures[f"attacks.{name}"] for name in ("auto_pgd", "fgsm", "square"))
    assert figures["attacks.auto_pgd"] < figures["attacks.accuracy"] - 0.2
    assert figures["attacks.masked"] == 0
    (section,) = (one for one in whole.sections if one.name == "attacks")
    assert {row[1] for row in section.tables[0].rows} == {"its float twin's gradients", "the file's scores"}


def test_a_group_of_one_is_listed_and_not_judged(whole: Audit) -> None:
    (section,) = (one for one in whole.sections if one.name == "groups")
    (table,) = (one for one in section.tables if one.columns[0] == "device")
    assert {row[0]: row[1] for row in table.rows} == {"alone": 1, "old": 199, "new": 100}
    assert any("1 groups have fewer than 10 examples (1 a single one)" in note for note in section.notes)
    judged = [row[2] for row in table.rows if row[0] != "alone"]
    assert section.figures["device.worst"] == min(judged) and section.figures["device.gap"] == max(judged) - min(judged)
    assert "light.worst" in section.figures


@pytest.fixture(scope="module")
def black(folder: Path) -> Subject:
    return open_subject(folder / "int8.mslite", folder / "data.npz")[0]


def test_without_gradients_it_is_said_which_attacks_remain(black: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "MOST_ROWS", 32)
    monkeypatch.setattr(attacks, "NEAR_ROWS", 4)
    found = attacks.PART.measure(black, Clock())
    assert set(found.figures) == {"accuracy", "robust", "square", "hop_skip_jump_distance"}
    assert any("square and hop_skip_jump remain" in note and "--float" in note for note in found.notes)


@pytest.mark.parametrize(
    ("kind", "shape", "turned"),
    [
        ("image", (16, 12, 3), (3, 16, 12)), ("image", (1, 16, 12), (1, 16, 12)), ("series", (40, 6), (6, 1, 40)),
        ("spectrogram", (20, 8, 1), (1, 20, 8)), ("sound", (400,), (1, 1, 400)), ("table", (7,), (7,)),
    ],
)  # fmt: skip
def test_square_sees_channels_first(
    black: Subject, kind: Kind, shape: tuple[int, ...], turned: tuple[int, ...]
) -> None:
    class Sum(BlackBox):
        def __init__(self) -> None:
            self.name, self.shape, self.classes, self.queries = "sum", shape, 2, 0

        def _scores(self, x: results.Array) -> results.Array:
            return np.stack([x.reshape(len(x), -1) @ np.arange(np.prod(shape)), np.zeros(len(x))], 1)

    victim = ChannelsFirst(replace(black, model=Sum(), kind=kind))
    x = np.random.default_rng(0).random((3, *shape), np.float32)
    assert victim.shape == turned == victim.arranged(x).shape[1:]
    np.testing.assert_array_equal(victim.back(victim.arranged(x)), x)
    np.testing.assert_array_equal(victim.logits(victim.arranged(x)), Sum().logits(x))


def test_a_bundle_with_gradients_is_its_own_white_box(folder: Path) -> None:
    subject, _ = open_subject(folder / "float.mslite", folder / "data.npz")
    assert isinstance(subject.own, WhiteBox) and subject.no_gradient == "" and subject.twin is None


def test_the_bundles_own_calibration_is_applied(folder: Path, digits: Rows, tmp_path: Path) -> None:
    plain = lite_runtime.load(folder / "float.mslite")
    scores = energy(plain.run({"x": digits[0][:300]})["logits"])
    fitted = Calibration("logits", 2.0, energy=Threshold(float(np.sort(scores)[269]), 0.1))
    path = tmp_path / "calibrated.mslite"
    path.write_bytes(with_calibration(folder / "float.mslite", fitted))
    subject, _ = open_subject(path, folder / "data.npz")
    found = calibration.PART.measure(subject, Clock())
    assert set(found.figures) == set(calibration.PART.figures(subject))
    own = measure_calibration(subject.scores, subject.data.y, fitted.temperature)
    assert found.figures["ece"] == own.ece != found.figures["uncalibrated_ece"]
    assert subject.confidence is not None and subject.confidence.out_of_distribution is not None
    assert found.figures["out_of_distribution"] == subject.confidence.out_of_distribution.mean() == 0.1


def test_integers_are_read_as_what_they_mean(tmp_path: Path) -> None:
    model = parsed(
        "net (int8[n, 4] q) => (float[n, 2] y)"
        " <float s = {0.5}, int8 z = {3}, float[4, 2] w = {1, 0, 0, 1, 1, 0, 0, 1}>"
        " { x = DequantizeLinear(q, s, z) y = MatMul(x, w) }"
    )
    (tmp_path / "m.mslite").write_bytes(converter.convert(model).bundle)
    q = np.random.default_rng(0).integers(-128, 128, (20, 4), np.int8)
    real = (q.astype(np.float32) - 3) / 2
    np.savez(tmp_path / "stored.npz", x=q, y=np.arange(20) % 2)
    np.savez(tmp_path / "real.npz", x=real + np.float32(0.2), y=np.arange(20) % 2)
    one, other = (open_subject(tmp_path / "m.mslite", tmp_path / f"{name}.npz")[0] for name in ("stored", "real"))
    np.testing.assert_array_equal(one.data.x, real)
    np.testing.assert_array_equal(one.scores, other.scores)  # the nearest integers are the same
    np.testing.assert_allclose(one.scores, np.stack([real[:, ::2].sum(1), real[:, 1::2].sum(1)], 1))


def test_planted_flips_are_counted_by_direction(black: Subject, victim: WhiteBox) -> None:
    class Other(WhiteBox):
        """The same scores, except that class 3 is always taken for 8, and the first nine 0s are right."""

        def _scores(self, x: results.Array) -> results.Array:
            scores = black.model.logits(x).copy()
            scores[scores.argmax(1) == 3, 8] = 99
            return scores

    twin = Other("twin", victim._forward, victim._weights, victim.shape, victim.classes)
    subject = replace(black, twin=twin)
    found = quantising.PART.measure(subject, Clock())
    was_three = black.scores.argmax(1) == 3
    gained = was_three & (black.data.y == 3)
    assert found.figures["flips"] == was_three.mean() and found.figures["gained"] == gained.mean()
    assert found.figures["lost"] == (was_three & (black.data.y == 8)).mean()
    by_class = {row[0]: row for row in found.tables[0].rows}
    assert by_class["3"][4] == gained.sum() and by_class["3"][2] == was_three[black.data.y == 3].mean()


def test_time_is_kept_and_what_was_not_done_is_said(folder: Path) -> None:
    now = [0.0]

    def slow(name: str) -> Part:
        def measure(_: Subject, clock: Clock) -> Section:
            done = 0
            while not clock.over:
                now[0], done = now[0] + 1, done + 1
            return Section(name, name, {"units": float(done)}, undone=("the rest",))

        return Part(name, name, lambda _: {"units": "of work"}, measure)

    subject = open_subject(folder / "int8.mslite", folder / "data.npz")[0]
    clock = Clock(10, lambda: now[0])
    first = slow("first").measure(subject, clock.part(0.5))
    second = slow("second").measure(subject, clock.part(1.0))
    assert (first.figures["units"], second.figures["units"], clock.left) == (5, 5, 0)
    hurried = audit(subject, parts=chosen(only=["attacks", "corruptions"]), budget=1e-6,
                    limits=[parsed_limit("attacks.robust>=0"), parsed_limit("corruptions.mean<=1")])  # fmt: skip
    assert all(section.undone for section in hurried.sections)
    assert [verdict.value for verdict in hurried.verdicts] == [None, None] and not hurried.held


def test_limits_hold_or_break(black: Subject, tmp_path: Path) -> None:
    parts = chosen(only=["accuracy"])
    path = tmp_path / "limits.toml"
    path.write_text('[limits]\n"accuracy.accuracy" = {least = 0.5, most = 1}\n"accuracy.examples" = {most = 10}\n')
    found = audit(black, parts=parts, limits=read_limits(path))
    assert [verdict.held for verdict in found.verdicts] == [True, False] and not found.held
    assert audit(black, parts=parts, limits=[parsed_limit("accuracy.examples<=300")]).held


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[limits]\n'accuracy.accuracy' = {least = 'much'}", "accuracy.least: expected a number, got"),
        ("[limits]\n'accuracy.accuracy' = {}", "expected least or most, got neither"),
        ("[limits]\n'accuracy.accuracy' = {lest = 1}", "no such key; did you mean 'least'"),
        ("[limits]\n'accuracy.accuracy' = {least = 2, most = 1}", "expected least to be at most most, got 2 and 1"),
        ("[limits]\n'accuracy.accuracy' = {least = nan}", "expected a number, got nan"),
        ("[limit]", r"\[limit\]: no such section; did you mean 'limits'"),
        ("limits = ", "expected TOML"),
    ],
)  # fmt: skip
def test_files_of_limits_are_checked(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "limits.toml"
    path.write_text(text)
    with pytest.raises(AuditError, match=message):
        read_limits(path)


@pytest.mark.parametrize(
    "text", ["accuracy.accuracy", "accuracy>0.9", "accuracy.accuracy>=high", "a.b>=nan", "a>=1e999"]
)
def test_limits_on_the_command_line_are_checked(text: str) -> None:
    with pytest.raises(AuditError, match="--limit: expected SECTION"):
        parsed_limit(text)


def test_unknown_figures_are_refused_before_anything_is_measured(black: Subject) -> None:
    fast = replace(black, seed=1)
    for text, message in (
        ("accuracy.acuracy>=1", "no such figure; near are accuracy.accuracy"),
        ("groups.devise.worst>=1", r"near are .*groups\.device\.worst"),
        ("quantising.flips<=1", "section 'quantising' cannot be made: no float model was given"),
        ("nothing>=1", "no such figure; near are accuracy"),
    ):
        with pytest.raises(AuditError, match=message):
            audit(fast, limits=[parsed_limit(text)])
    with pytest.raises(AuditError, match="section 'attacks' cannot be made: it was left out by --only or --without"):
        audit(fast, parts=chosen(without=["attacks"]), limits=[parsed_limit("attacks.robust>=0")])
    assert "scores" not in vars(fast)
    known, lacking = figures_of(black, PARTS)
    assert "corruptions.noise" in known and set(lacking) == {"privacy", "quantising", "federation"}
    with pytest.raises(AuditError, match="no such section; did you mean 'attacks'"):
        chosen(only=["atacks"])


X, Y = np.zeros((6, 64), np.float32), np.arange(6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X}, "expected an array 'y', got x"),
        ({"x": X, "y": Y[:4]}, "as many examples in 'x' as in 'y', got 6 and 4"),
        ({"x": X, "y": Y + 7}, r"expected classes 0 to 9, as the model has 10, got 10, 11, 12"),
        ({"x": X, "y": Y - 1}, r"got -1; number them as in training"),
        ({"x": X, "y": np.eye(10)[Y]}, r"one class an example, got shape \(6, 10\); use y.argmax"),
        ({"x": X, "y": Y * 1.0}, r"expected whole numbers of shape \(n,\), got float64"),
        ({"x": X, "y": np.array(list("abcdef"))}, "expected whole numbers"),
        ({"x": X[:, :60], "y": Y}, r"expected shape \(n, 64\).*got \(6, 60\)"),
        ({"x": X[:0], "y": Y[:0]}, "expected at least one example"),
        ({"x": np.where(np.arange(6)[:, None] == 2, np.nan, X), "y": Y}, "NaN or infinity in 1 of 6 .* row 2; leave"),
        ({"x": np.full((6, 64), 1e39), "y": Y}, "NaN or infinity in 6 of 6"),
        ({"x": X.astype(complex), "y": Y}, "expected numbers, got complex128"),
        ({"x": np.array([{}] * 6), "y": Y}, "allow_pickle=False; write plain arrays with numpy.savez"),
    ],
)  # fmt: skip
def test_data_that_do_not_fit(folder: Path, tmp_path: Path, arrays: dict[str, np.ndarray], message: str) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(AuditError, match=message):
        open_subject(folder / "float.mslite", path)


def test_files_and_settings_that_do_not_fit(folder: Path, tmp_path: Path, network: ir.Model) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    model, data = folder / "float.mslite", folder / "data.npz"
    other = tmp_path / "other.onnx"
    ir.save(zoo.mlp(64, 3), other)
    cases: list[tuple[Path, Settings, str]] = [
        (tmp_path / "text.npz", Settings(), "cannot read .*text.npz"),
        (tmp_path / "none.npz", Settings(), "cannot read .*none.npz"),
        (data, Settings(span=(0.5, 1)), "--range: expected two finite numbers.*values 0 to 1"),
        (data, Settings(span=(1, 0)), "--range: expected two finite numbers"),
        (data, Settings(span=(0, np.inf)), "--range: expected two finite numbers"),
        (data, Settings(epsilon=0.0), "--epsilon: expected more than 0"),
        (data, Settings(epsilon=float("nan")), "--epsilon: expected more than 0"),
        (data, Settings(epsilon=2.0), "--epsilon: expected more than 0, at most the range 1, got 2"),
        (data, Settings(kind="image"), "kind image: expected inputs of"),
        (data, Settings(classes=("a",) * 10), "--classes: expected 10 different names.*got a, a"),
        (data, Settings(twin=other), "expected classes: 10, as float.mslite has, got 3"),
        (data, Settings(twin=tmp_path / "m.pt"), "expected an .onnx or .mslite file"),
        (data, Settings(x="image"), "expected an array 'image', got x, y, device, light, id; name it by --x"),
    ]
    for path, settings, message in cases:
        with pytest.raises(AuditError, match=message):
            open_subject(model, path, settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Section("Big", "t"), "expected names of a-z"),
        (lambda: Section("a", "t", {"b": float("nan")}), "a.b: expected a finite number, got nan"),
        (lambda: Table("t", ("a",), ((1, 2),)), "expected rows of 1 cells"),
        (lambda: Picture("p", np.zeros((2, 2, 4), np.uint8)), r"expected uint8 of shape"),
    ],
)
def test_sections_are_checked(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AuditError, match=message):
        make()
