"""Gradient inversion of the messages of rounds that devices answered."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import converter
from cloud import zoo
from cloud.audit.pictures import rows_of
from cloud.audit.privacy.inversion import (
    Tap,
    compare,
    dlg,
    geiping,
    invert,
    labels_of,
    observe,
    observe_change,
    observe_mean,
    psnr,
    record,
    recorded_rounds,
    ssim,
    trained_function,
)
from cloud.audit.privacy.inversion.geiping import gradient_of
from cloud.errors import AuditError
from converter import Training
from federated.messages.packed import pack, unpack

DEVICES = 3
Taps = Mapping[str, Tap]


def smooth() -> ir.Model:
    """A network that can be followed by second derivatives."""
    b = zoo.Builder("smooth", 3)
    y = b.op("Sigmoid", b.dense(b.input("x", ("batch", 64)), 24, name="hidden"))
    return b.model(logits=b.dense(y, 10, name="head"))


def cnn() -> ir.Model:
    b = zoo.Builder("cnn", 0)
    y = b.relu(b.conv(b.input("x", ("batch", 1, 8, 8)), 12, 3, name="first", bias=True))
    y = b.relu(b.conv(y, 12, 3, name="second", bias=True))
    return b.model(logits=b.dense(b.op("Flatten", y, shape=("batch", 768), axis=1), 10, name="head"))


def norms() -> ir.Model:
    b = zoo.Builder("norms", 0)
    y = b.conv_bn_relu(b.input("x", ("batch", 1, 8, 8)), 8, 3, name="first")
    return b.model(logits=b.dense(b.global_average_pool(y), 10, name="head"))


MODELS = {
    "mlp": lambda: zoo.mlp(64, 10, [48]), "smooth": smooth, "cnn": cnn, "norms": norms
}  # fmt: skip


class Runs:
    """Rounds of FedSGD over the digits."""

    def __init__(self, digits: tuple[np.ndarray, np.ndarray]) -> None:
        self.x, self.y = digits[0], digits[1].astype(np.int64)

    def __call__(self, name: str, batch: int = 1, **options: Any) -> Taps:
        shape = (1, 8, 8) if name == "cnn" else (64,)
        rows = [slice(i * batch, (i + 1) * batch) for i in range(DEVICES)]
        data = {f"d{i}": (self.x[own].reshape(-1, *shape), self.y[own]) for i, own in enumerate(rows)}
        return recorded_rounds(MODELS[name](), data, batch=batch, **options)

    def compared(self, name: str, taps: Taps, **options: Any) -> Any:
        """The first device's examples beside what its message shows."""
        found = invert(observe(MODELS[name](), *taps["d0"].trained[0]), **options)
        return compare(found.reshape(-1, 8, 8), self.images(taps, "d0"), self.x[-300:].reshape(-1, 8, 8))

    def images(self, taps: Taps, device: str) -> np.ndarray:
        return taps[device].device.data.inputs["x"].reshape(-1, 8, 8)


@pytest.fixture(scope="module")
def runs(digits: tuple[np.ndarray, np.ndarray]) -> Runs:
    return Runs(digits)


@pytest.mark.parametrize(
    ("words", "least"),
    [
        ({}, 60),
        ({"up": ["int8"]}, 30),
        ({"up": ["topk:0.2"]}, 15),
        ({"privacy": {"clip": 0.05}}, 60),
        ({"privacy": {"clip": 1.0, "noise": "central", "multiplier": 1.0}}, 60),
    ],
)
def test_a_dense_layer_shows_the_example(runs: Runs, words: dict[str, Any], least: float) -> None:
    """Codecs and clipping do not hide it, and central noise is added only later."""
    taps = runs("mlp", **words)
    found = runs.compared("mlp", taps)
    assert found.psnr.min() > least and found.gain > least - 20
    assert labels_of(observe(MODELS["mlp"](), *taps["d0"].trained[0])) == taps["d0"].device.data.labels


NOISE, SECURE = {"clip": 1.0, "noise": "local", "multiplier": 0.5}, {"clip": 1.0, "secure": True}


@pytest.mark.parametrize(("name", "privacy"), [("mlp", NOISE), ("mlp", SECURE), ("cnn", NOISE)])
def test_noise_and_secure_sums_leave_chance(runs: Runs, name: str, privacy: dict[str, Any]) -> None:
    found = runs.compared(name, runs(name, privacy=privacy), **({} if name == "mlp" else {"steps": 60, "restarts": 1}))
    assert found.gain < 0.5 and abs(found.ssim.mean()) < 0.35


@pytest.mark.parametrize("algorithm", ["fedprox", "fedadam"])
def test_other_algorithms_send_gradients_too(runs: Runs, algorithm: str) -> None:
    assert runs.compared("mlp", runs("mlp", algorithm=algorithm)).psnr.min() > 60


def test_a_batch_shows_examples_and_labels(runs: Runs) -> None:
    taps = runs("mlp", batch=4, privacy={"clip": 0.05})
    found = runs.compared("mlp", taps)
    assert (found.psnr > 60).sum() >= 2
    seen = observe(MODELS["mlp"](), *taps["d0"].trained[0])
    assert seen.protections == ("clip 0.05",) and seen.examples == 4
    np.testing.assert_array_equal(labels_of(seen), np.sort(taps["d0"].device.data.labels))


def test_convolutions_are_inverted_by_a_search(runs: Runs) -> None:
    found = runs.compared("cnn", runs("cnn"), steps=400, restarts=1)
    assert found.psnr.min() > 20 and found.gain > 5


def test_deep_leakage_finds_the_label_too(runs: Runs) -> None:
    taps = runs("smooth")
    seen = observe(smooth(), *taps["d0"].trained[0])
    x, labels = dlg(seen, restarts=1, steps=200)
    assert labels == taps["d0"].device.data.labels
    assert psnr(x.reshape(8, 8), runs.images(taps, "d0")[0]) > 25
    again, _ = dlg(seen, labels_of(seen), restarts=1, steps=200)
    assert psnr(again.reshape(8, 8), runs.images(taps, "d0")[0]) > 25


def test_the_change_of_a_model_is_the_mean_gradient(runs: Runs) -> None:
    """Secure sums hide whose gradient it was; what the sum itself shows, they do not hide."""
    plain, secret = runs("mlp", batch=2), runs("mlp", batch=2, rounds=2, privacy={"clip": 100.0, "secure": True})
    model = MODELS["mlp"]()
    each = [observe(model, *tap.trained[0]).gradient for tap in plain.values()]
    (first, _), (second, _) = secret["d0"].trained
    seen = observe_change(model, first, second, DEVICES)
    assert seen.examples == 2 * DEVICES and not seen.masked
    for name, slope in seen.gradient.items():
        np.testing.assert_allclose(slope, np.mean([one[name] for one in each], 0), atol=2e-3)


def test_models_that_were_sent_as_differences_are_followed(runs: Runs) -> None:
    model = MODELS["mlp"]()
    message, reply = runs("mlp", rounds=2, down=["difference", "topk:0.5"])["d0"].trained[1]
    assert psnr(invert(observe(model, message, reply))[0], runs.x[0]) > 60
    early = runs("mlp", rounds=3, down=["difference"])["d0"].trained[2]
    with pytest.raises(AuditError, match="differences to a later model"):
        observe(model, *early)


def test_messages_without_a_gradient_are_refused(runs: Runs) -> None:
    model, taps = MODELS["mlp"](), runs("mlp")
    message, reply = taps["d0"].trained[0]
    meta, body = unpack(reply)
    with pytest.raises(AuditError, match="expected an update, got 'refusal', which has no gradient: no time"):
        observe(model, message, pack({**meta, "kind": "refusal", "why": "no time"}, {}))
    with pytest.raises(AuditError, match="these messages have no gradient"):
        observe(model, message, pack(meta, {}))
    with pytest.raises(AuditError, match="a message that asks for training, got 'update'"):
        observe(model, reply, reply)
    asked, model_sent = unpack(message)
    for key in ("steps", "privacy", "algorithm", "up", "parts"):
        with pytest.raises(AuditError, match=f"expected a field '{key}' of"):
            observe(model, pack({**asked, key: "1"}, model_sent), reply)
    with pytest.raises(AuditError, match="secure sum: expected a field 'bound' of float, got None"):
        observe(model, pack({**asked, "privacy": {"secure": True}}, model_sent), reply)
    with pytest.raises(AuditError, match="do not fit the message"):
        observe(zoo.mlp(64, 10, [47]), message, reply)
    with pytest.raises(AuditError, match="the update cannot be read"):
        observe(model, message, pack(meta, {"data": body["data"][:-9]}))
    with pytest.raises(AuditError, match="its update is no gradient"):
        observe(model, *runs("mlp", algorithm="scaffold")["d0"].trained[0])
    with pytest.raises(AuditError, match="expected 1 labels, integers, got int64\\[2\\]"):
        geiping(observe(model, message, reply), np.array([1, 2]))


@pytest.mark.parametrize("name", ["mlp", "norms"])
def test_the_bundle_that_devices_have_gives_the_same_gradient(runs: Runs, name: str, tmp_path: Path) -> None:
    """In training form: statistics of batch normalisation are those of the batch."""
    model = MODELS[name]()
    path = tmp_path / "model.mslite"
    converter.convert(model, output=path, trainable=Training("*", batch_norm="train"))
    function = trained_function(path)
    shape = (64,) if name == "mlp" else (1, 8, 8)
    data = {f"d{i}": (runs.x[4 * i : 4 * i + 4].reshape(-1, *shape), runs.y[4 * i : 4 * i + 4]) for i in range(2)}
    found = record(path, data, {"local": {"steps": 1, "batch": 4}, "algorithm": {"name": "fedavg", "rate": 0.1}})
    ours = observe(function, *found.taps["d0"].trained[0])
    assert ours.classes == 10 and bool(ours.state) == (name == "norms")
    np.testing.assert_array_equal(labels_of(ours), np.sort(data["d0"][1]))
    slopes = gradient_of(function, ours.params, ours.state, data["d0"][0], data["d0"][1])
    for each, slope in slopes.items():
        np.testing.assert_allclose(ours.gradient[each], slope, atol=2e-4, err_msg=each)
    if name == "mlp":
        np.testing.assert_array_equal(invert(ours), invert(observe(model, *found.taps["d0"].trained[0])))


def test_a_bundles_loss_takes_classes_alone(runs: Runs, tmp_path: Path) -> None:
    converter.convert(smooth(), output=tmp_path / "m.mslite", trainable="*")
    message = runs("smooth")["d0"].trained[0]
    seen = observe(trained_function(tmp_path / "m.mslite"), *message)
    x, _ = dlg(seen, labels_of(seen), restarts=1, steps=200)
    assert psnr(x[0], runs.x[0]) > 25
    with pytest.raises(AuditError, match="expected labels with a bundle"):
        dlg(seen)


def test_the_mean_that_a_server_has_and_the_one_that_it_publishes(runs: Runs, tmp_path: Path) -> None:
    """Central noise is added to the sum after the server has it."""
    converter.convert(MODELS["mlp"](), output=tmp_path / "m.mslite", trainable="*")
    data = {f"d{i}": (runs.x[i : i + 1], runs.y[i : i + 1]) for i in range(DEVICES)}
    privacy = {"clip": 1.0, "secure": True, "noise": "central", "multiplier": 0.5}
    words = {"local": {"steps": 1, "batch": 1}, "privacy": privacy}
    found, again = (record(tmp_path / "m.mslite", data, words, seed=3) for _ in range(2))
    plain = runs("mlp", rate=0.05)
    each = [observe(MODELS["mlp"](), *tap.trained[0]).gradient for tap in plain.values()]
    message = found.taps["d0"].trained[0][0]
    ours = observe_mean(MODELS["mlp"](), message, found.means[0], DEVICES)
    noisy = observe_mean(MODELS["mlp"](), message, found.published[0], DEVICES)
    for name, slope in ours.gradient.items():
        np.testing.assert_allclose(slope, np.mean([one[name] for one in each], 0), atol=1e-4)
        assert np.abs(noisy.gradient[name] - slope).mean() > 1
        np.testing.assert_array_equal(found.published[0]["params"][name], again.published[0]["params"][name])


def test_pictures() -> None:
    rng = np.random.default_rng(0)
    images, others = rng.random((3, 8, 8), np.float32), rng.random((9, 8, 8), np.float32)
    found = compare(images[[2, 0, 1]], images, others)
    assert (found.psnr == 100).all() and found.ssim.min() > 0.999 and found.gain > 80
    assert psnr(np.zeros(4), np.full(4, 0.1)) == pytest.approx(20)
    assert ssim(images[0], 1 - images[0]) < -0.5
    assert compare(others[3:6], images, others).gain < 1
    assert (found.rank == 0).all() and (compare(others[3:6], images, others).rank > 0).all()
    assert list(compare(images[:1], images, others).rank) == [0, 9, 9]
    pixels = rows_of([found.originals[:2], found.images[:2]], "image", (0.0, 1.0))
    assert pixels.dtype == np.uint8 and pixels.shape == (18, 18)
    np.testing.assert_array_equal(pixels[:8, 10:], np.round(images[1] * 255))
    np.testing.assert_array_equal(pixels[:8], pixels[10:])
    with pytest.raises(AuditError, match="at least 3 other examples"):
        compare(images, images, others[:2])
