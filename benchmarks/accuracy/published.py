"""Real models with real data for the accuracy table, the acceptance tests and the budget search.

A task's calibration rows are never evaluation rows. Sources and licences: the folders' MANIFEST.tsv.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.accuracy.measures import Task, area, top1
from lite_runtime.graph import Array

__all__ = ["TASKS", "tasks"]


def tasks(models: Path, data: Path) -> Iterator[Task]:
    """Every task whose model and data exist."""
    for make in TASKS:
        try:
            yield make(models, data)
        except FileNotFoundError:
            continue


def _there(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(path)
    return path


def _image_classification(models: Path, data: Path) -> Task:
    """MLPerf Tiny ic01: 200 CIFAR-10 test images, inputs 0..255; calibrated on training images."""
    test = np.load(_there(data / "mlperftiny_ic01.npz"))
    train = np.load(_there(data / "cifar10_calibration.npz"))
    return Task(
        "ic01 resnet8",
        _there(models / "mlperftiny_ic_resnet8_fp32.tflite"),
        {"input_1": train["x"].astype(np.float32)},
        {"input_1": test["x"].astype(np.float32)},
        top1(test["y"]),
        models / "mlperftiny_ic_resnet8_int8.tflite",
    )


def _keyword_spotting(models: Path, data: Path) -> Task:
    """MLPerf Tiny kws01: the stored bytes are inputs of the int8 model, so its input scale converts them to real
    numbers; the first tenth is for calibration."""
    found = np.load(_there(data / "mlperftiny_kws01.npz"))
    x, cut = (found["x"].astype(np.float32) - 83) * np.float32(0.5847029), len(found["x"]) // 10
    return Task(
        "kws01 ds-cnn",
        _there(models / "mlperftiny_kws_dscnn_dynrange.tflite"),
        {"input_1": x[:cut]},
        {"input_1": x[cut:]},
        top1(found["y"][cut:]),
        models / "mlperftiny_kws_dscnn_int8.tflite",
    )


def _anomaly_detection(models: Path, data: Path) -> Task:
    """MLPerf Tiny ad01: windows of 5 frames, every 4th; a clip's score is its mean reconstruction error."""
    found = np.load(_there(data / "mlperftiny_ad01.npz"))
    frames, labels = found["x"], found["y"].astype(bool)
    starts = range(0, frames.shape[1] - 4, 4)
    windows = np.stack([frames[:, s : s + 5].reshape(len(frames), 640) for s in starts], 1).astype(np.float32)
    cut = len(frames) // 10
    held, each = windows[cut:], len(starts)

    def errors(outputs: Mapping[str, Array]) -> Array:
        (rebuilt,) = outputs.values()
        return np.asarray(np.square(rebuilt.reshape(held.shape) - held).mean((1, 2)))

    return Task(
        "ad01 autoencoder",
        _there(models / "mlperftiny_ad_autoencoder_fp32.tflite"),
        {"input_1": windows[:cut].reshape(-1, 640)[:: max(1, cut * each // 500)]},
        {"input_1": held.reshape(-1, 640)},
        area(errors, labels[cut:]),
        models / "mlperftiny_ad_autoencoder_int8.tflite",
    )


def _digits(models: Path, data: Path) -> Task:
    """MNIST, whose file is sorted by digit: rows at random."""
    found = np.load(_there(data / "mnist.npz"))
    rng = np.random.default_rng(0)
    train, test = (rng.permutation(len(found[k]))[:n] for k, n in (("y_train", 200), ("y_test", 5000)))
    return Task(
        "mnist cnn",
        _there(models / "onnxzoo_mnist_8.onnx"),
        {"Input3": found["x_train"][train][:, None].astype(np.float32)},
        {"Input3": found["x_test"][test][:, None].astype(np.float32)},
        top1(found["y_test"][test]),
    )


def _person_detection(models: Path, data: Path) -> Task:
    """MLPerf Tiny vww01: 1000 pictures of COCO, 96x96, a person or none; 100 of them, at random, for calibration.

    Pictures: github.com/eembc/energyrunner (datasets/vww01, in its history), models: github.com/mlcommons/tiny.
    """
    found = np.load(_there(data / "mlperftiny_vww01.npz"))
    x, order = found["x"].astype(np.float32) / 255, np.random.default_rng(0).permutation(len(found["x"]))
    return Task(
        "vww01 mobilenet-v1-0.25",
        _there(models / "mlperftiny_vww_mobilenet_fp32.tflite"),
        {"input_1": x[order[:100]]},
        {"input_1": x[order[100:]]},
        top1(found["y"][order[100:]]),
        models / "mlperftiny_vww_mobilenet_int8.tflite",
    )


def _photograph_classes(models: Path, data: Path) -> Task:
    """ImageNet, one picture of each class: 100 at random for calibration, the other 900 to evaluate.

    Pictures: github.com/EliSchwartz/imagenet-sample-images, sorted by name, the shorter side 256 pixels, the 224x224 in
    the middle, uint8 [n, h, w, 3]. Model: mobilenet_v1_0.25_224_1_default_1.tflite of tensorflow/tflite-support on
    GitHub, whose first class is the background; mobilenet_v1_0.25_224_quant.tflite there was trained with quantisation.
    """
    pictures = np.load(_there(data / "imagenet_sample_1000.npy"), mmap_mode="r")
    order = np.random.default_rng(0).permutation(len(pictures))

    def scaled(rows: Array) -> Array:
        return np.asarray(pictures[rows] / np.float32(127.5) - 1, np.float32)

    return Task(
        "imagenet mobilenet-v1-0.25",
        _there(models / "mobilenet_v1_0.25_224.tflite"),
        {"input": scaled(order[:100])},
        {"input": scaled(order[100:])},
        top1(order[100:] + 1),
        models / "mobilenet_v1_0.25_224_quant.tflite",
    )


_CIFAR_MEAN = np.array([0.4914, 0.4822, 0.4465], np.float32)
_CIFAR_DEVIATION = np.array([0.2471, 0.2435, 0.2616], np.float32)


def _vision_transformer(models: Path, data: Path) -> Task:
    """CIFAR-10, with channels normalised by their usual mean and standard deviation."""
    test, train = np.load(_there(data / "mlperftiny_ic01.npz")), np.load(_there(data / "cifar10_calibration.npz"))

    def first(x: Array) -> Array:
        scaled = (x.astype(np.float32) / 255 - _CIFAR_MEAN) / _CIFAR_DEVIATION
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))

    return Task(
        "vit",
        _there(models / "vnncomp23_vit_pgd_2_3_16.onnx"),
        {"input": first(train["x"][:200])},
        {"input": first(test["x"])},
        top1(test["y"]),
    )


def _photographs(data: Path, count: int, height: int, width: int) -> tuple[Array, Array]:
    """(calibration, evaluation) images (n, 3, h, w), 0..255: mosaics of CIFAR images, smoothly enlarged."""
    pools = (np.load(_there(data / f"{name}.npz"))["x"] for name in ("cifar10_calibration", "mlperftiny_ic01"))
    return tuple(_mosaics(pool, count, height, width) for pool in pools)  # type: ignore[return-value]


def _mosaics(pool: Array, count: int, height: int, width: int) -> Array:
    rng = np.random.default_rng(len(pool))
    tiles = pool[rng.choice(len(pool), (count, 3, 4))].astype(np.float32)
    whole = tiles.transpose(0, 5, 1, 3, 2, 4).reshape(count, 3, 96, 128)
    return _enlarged(_enlarged(whole, 2, height), 3, width)


def _enlarged(x: Array, axis: int, size: int) -> Array:
    at = np.linspace(0, x.shape[axis] - 1, size)
    low = np.minimum(at.astype(int), x.shape[axis] - 2)
    share = (at - low).astype(np.float32).reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    enlarged: Array = np.take(x, low, axis) * (1 - share) + np.take(x, low + 1, axis) * share
    return enlarged


def _picture_task(
    name: str, file: str, entry: str, size: tuple[int, int], prepare: Callable[[Array], Array]
) -> Callable[[Path, Path], Task]:
    def make(models: Path, data: Path) -> Task:
        path = _there(models / file)
        calibration, evaluation = _photographs(data, 24, *size)
        return Task(name, path, {entry: prepare(calibration)}, {entry: prepare(evaluation)})

    return make


def _speech(models: Path, data: Path) -> Task:
    """Magnitudes of 512-sample frames of 8 kHz speech, with zero state."""
    found = np.load(_there(data / "fsdd_spoken_digits.npz"))
    audio = found["audio"].astype(np.float32) / 32768
    starts = np.random.default_rng(0).choice(len(audio) - 512, 400, replace=False)
    frames = np.abs(np.fft.rfft(np.stack([audio[s : s + 512] for s in starts]))).astype(np.float32)[:, None]
    state = np.zeros((400, 2, 128, 2), np.float32)
    return Task(
        "dtln lstm",
        _there(models / "dtln_model_1.onnx"),
        {"input_2": frames[:200], "input_3": state[:200]},
        {"input_2": frames[200:], "input_3": state[200:]},
    )


TASKS: tuple[Callable[[Path, Path], Task], ...] = (
    _image_classification,
    _keyword_spotting,
    _anomaly_detection,
    _digits,
    _vision_transformer,
    _person_detection,
    _photograph_classes,
    _picture_task("yunet", "yunet_n_320_320.onnx", "input", (320, 320), lambda x: x),
    _picture_task("ultraface", "ultraface_RFB_320_nopost.onnx", "input", (240, 320), lambda x: (x - 127) / 128),
    _picture_task("fastestdet", "fastestdet_352.onnx", "input.1", (352, 352), lambda x: x / 255),
    _picture_task("yolox-nano", "yolox_nano.onnx", "images", (416, 416), lambda x: x[:, ::-1]),
    _picture_task(
        "hand landmarks", "hand_landmark_full.tflite", "input_1", (224, 224), lambda x: x.transpose(0, 2, 3, 1) / 255,
    ),
    _picture_task(
        "super-resolution", "onnxzoo_super_resolution_10.onnx", "input", (224, 224),
        lambda x: x.mean(1, keepdims=True) / 255,
    ),
    _speech,
)  # fmt: skip
