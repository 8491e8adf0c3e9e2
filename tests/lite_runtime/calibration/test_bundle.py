"""Calibration in a bundle: it comes back, changes nothing else, and hostile sections are refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.bundle.layout import SIGNATURE
from lite_runtime.bundle.signatures import Signature, signatures_of
from lite_runtime.bundle.signing import with_signatures
from lite_runtime.calibration.description import SECTION, Calibration, Mahalanobis, Threshold, with_calibration
from lite_runtime.errors import BundleError, InputError
from lite_runtime.graph import Graph, Node, Value

RNG = np.random.default_rng(4)
SIZE, CLASSES = 3, 4


def plain(extra: dict[str, bytes] | None = None, scale: float = 1.0) -> bytes:
    """A bundle of features = tanh(x), logits = features @ w."""
    w = (np.random.default_rng(1).standard_normal((SIZE, 32)) * scale).astype(np.float32)[:, :CLASSES]
    graph = Graph(
        (Value("x", "float32", ("n", SIZE)),),
        (Value("logits", "float32", ("n", CLASSES)), Value("features", "float32", ("n", SIZE))),
        (Node("Tanh", ("x",), ("features",)), Node("MatMul", ("features", "w"), ("logits",))),
        {"w": np.ascontiguousarray(w)},
    )
    return bundle.write(None, {"predict": graph}, metadata={"a": 1}, extra=extra or {})


FULL = Calibration(
    "logits",
    2.5,
    energy=Threshold(-1.5, 0.05),
    mahalanobis=Mahalanobis(
        "features",
        RNG.standard_normal((CLASSES, SIZE)).astype(np.float32),
        RNG.standard_normal((SIZE, SIZE)).astype(np.float32),
        Threshold(4.0, 0.1),
    ),
)


def test_round_trip() -> None:
    data = with_calibration(plain(), FULL)
    found = lite_runtime.load(data, backend="reference").calibration
    assert found is not None and found.mahalanobis is not None and FULL.mahalanobis is not None
    assert found[:5] == FULL[:5]
    assert (found.mahalanobis.output, found.mahalanobis.above) == ("features", Threshold(4.0, 0.1))
    np.testing.assert_array_equal(found.mahalanobis.means, FULL.mahalanobis.means)
    np.testing.assert_array_equal(found.mahalanobis.whitener, FULL.mahalanobis.whitener)
    assert lite_runtime.load(plain(), backend="reference").calibration is None


@pytest.mark.parametrize("others", [{}, {"aaa": b"1", "tokenizer": b"22"}])
def test_the_rest_stays_byte_for_byte(others: dict[str, bytes]) -> None:
    before = plain(others)
    data = with_calibration(before, FULL)
    held, old = bundle.read(data), bundle.read(before)
    assert [name for name in held.sections if name != SECTION] == list(old.sections)
    assert all(bytes(held.section(name)) == bytes(old.section(name)) for name in old.sections)
    assert not held.sections[SECTION].required and held.digest != old.digest
    assert data == plain({**others, SECTION: bytes(held.section(SECTION))})  # where `write` places it
    assert with_calibration(data, None) == before
    assert with_calibration(data, FULL) == data


def test_signatures_of_other_contents_are_dropped() -> None:
    signed = with_signatures(plain(), [Signature("0" * 64, "1" * 128)])
    assert SIGNATURE not in bundle.opened(with_calibration(signed, FULL)).sections
    calibrated = with_signatures(with_calibration(plain(), FULL), [Signature("0" * 64, "1" * 128)])
    assert len(signatures_of(bundle.opened(calibrated))) == 1
    assert lite_runtime.load(calibrated, backend="reference").calibration is not None


def test_other_weights_invalidate_it() -> None:
    raw = bytes(bundle.read(with_calibration(plain(), FULL)).section(SECTION))
    model = lite_runtime.load(plain({SECTION: raw}, scale=2.0), backend="reference")
    x = np.zeros((1, SIZE), np.float32)
    outputs = model.run({"x": x})  # it still runs
    with pytest.raises(BundleError, match="changed since; fit the calibration again"):
        model.confidence(outputs)


def test_confidence_of_a_run() -> None:
    model = lite_runtime.load(with_calibration(plain(), FULL), backend="reference")
    outputs = model.run({"x": RNG.standard_normal((50, SIZE)).astype(np.float32)})
    found = model.confidence(outputs)
    z = outputs["logits"].astype(np.float64)
    p = np.exp(z / 2.5) / np.exp(z / 2.5).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.probabilities, p, atol=1e-12)
    np.testing.assert_array_equal(found.probabilities.argmax(axis=1), z.argmax(axis=1))
    assert found.energy is not None and found.distance is not None and found.out_of_distribution is not None
    energies = -np.log(np.exp(z).sum(axis=1))
    np.testing.assert_allclose(found.energy, energies, atol=1e-12)
    assert FULL.mahalanobis is not None
    away = (outputs["features"][:, None].astype(np.float64) - FULL.mahalanobis.means) @ FULL.mahalanobis.whitener
    np.testing.assert_allclose(found.distance, (away**2).sum(axis=2).min(axis=1), rtol=1e-9)
    expected = (energies > -1.5) | ((away**2).sum(axis=2).min(axis=1) > 4.0)
    np.testing.assert_array_equal(found.out_of_distribution, expected)
    assert 0 < expected.sum() < 50
    one = model.confidence({name: array[0] for name, array in outputs.items()})
    np.testing.assert_allclose(one.probabilities, found.probabilities[:1])


def test_what_is_not_a_number_is_out_of_distribution() -> None:
    model = lite_runtime.load(with_calibration(plain(), FULL), backend="reference")
    found = model.confidence({"logits": np.full((1, CLASSES), np.nan), "features": np.zeros((1, SIZE))})
    assert found.out_of_distribution is not None and found.out_of_distribution.tolist() == [True]


def test_probabilities_are_calibrated_as_their_logits() -> None:
    logits = RNG.normal(size=(20, CLASSES))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    made = [
        lite_runtime.load(with_calibration(plain(), Calibration("logits", 2.0, kind)), backend="reference")
        for kind in ("logits", "probabilities")
    ]
    first, second = made[0].confidence({"logits": logits}), made[1].confidence({"logits": p})
    np.testing.assert_allclose(first.probabilities, second.probabilities, atol=1e-12)
    assert first.energy is None and first.out_of_distribution is None


def test_outputs_that_do_not_fit() -> None:
    model = lite_runtime.load(with_calibration(plain(), FULL), backend="reference")
    with pytest.raises(InputError, match="expected the output 'features', got logits"):
        model.confidence({"logits": np.zeros((1, CLASSES))})
    with pytest.raises(InputError, match="expected 3 features, got 2"):
        model.confidence({"logits": np.zeros((1, CLASSES)), "features": np.zeros((1, 2))})
    with pytest.raises(InputError, match=r"got \(1, 1, 4\)"):
        model.confidence({"logits": np.zeros((1, 1, CLASSES))})
    with pytest.raises(InputError, match="no calibration"):
        lite_runtime.load(plain(), backend="reference").confidence({})


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Calibration("scores", 1.0), "an output of logits, features, got 'scores'"),
        (Calibration("logits", 1.0, signature="fit"), "a signature of predict, got 'fit'"),
        (Calibration("logits", float("nan")), "finite"),
        (Calibration("logits", 0.0), r"temperature: expected a number 0\.001\.\.1000, got 0\.0"),
        (Calibration("logits", 1.0, "odds"), "one of logits, probabilities"),
        (Calibration("logits", 1.0, "probabilities", energy=Threshold(0.0, 0.1)), "have lost it"),
        (FULL._replace(mahalanobis=FULL.mahalanobis._replace(output="logits")), "4 features, got 3"),  # type: ignore
    ],
)
def test_what_is_not_written(given: Calibration, text: str) -> None:
    with pytest.raises(BundleError, match=text):
        with_calibration(plain(), given)


def changed(**changes: Any) -> dict[str, Any]:
    doc: dict[str, Any] = json.loads(bytes(bundle.read(with_calibration(plain(), FULL)).section(SECTION)))
    for name, value in changes.items():
        place = doc
        *path, last = name.split("__")
        for step in path:
            place = place[step]
        place[last] = value
    return doc


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"version": 2}, "use a newer msedge"),
        ({"version": True}, "version: expected 1"),
        ({"more": 1}, "the keys"),
        ({"temperature": 10**400}, "got another integer"),
        ({"temperature": "1"}, "a number"),
        ({"of": "00"}, "changed since"),
        ({"output": 3}, "text"),
        ({"output": "x"}, "an output of logits, features"),
        ({"signature": "fit"}, "a signature of predict"),
        ({"energy": None}, "an object"),
        ({"energy__false_alarms": 2.0}, r"0\.\.1"),
        ({"mahalanobis__means__data": "$"}, "Base64"),
        ({"mahalanobis__means__data": ""}, "48 bytes of float32, got 0"),
        ({"mahalanobis__means__shape": [1 << 40, 1 << 40]}, "at most"),
        ({"mahalanobis__means__shape": [4, -3]}, "at most"),
        ({"mahalanobis__whitener__shape": [9, 1]}, r"the shape \(3, 3\)"),
        ({"mahalanobis__means__data": base64.b64encode(np.full(12, np.nan, "<f4").tobytes()).decode()}, "finite"),
    ],
)
def test_hostile_sections(changes: dict[str, Any], text: str) -> None:
    raw = json.dumps(changed(**changes)).encode()
    model = lite_runtime.load(plain({SECTION: raw}), backend="reference")
    with pytest.raises(BundleError, match=text):
        _ = model.calibration


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"a":1,"a":1}', b" " * ((1 << 24) + 1)])
def test_sections_that_are_no_document(raw: bytes) -> None:
    model = lite_runtime.load(plain({SECTION: raw}), backend="reference")
    with pytest.raises(BundleError, match="calibration"):
        _ = model.calibration
