"""Sounds as inputs: from the same samples JavaScript makes the numbers that the gateway makes."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import Any

import numpy as np
import pytest

from edge.gateway.processing import Processing
from lite_runtime.bundle.processing import check
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array
from tests.converter.ahead import node
from tests.edge.gateway.processing.files import declared, port, ports, texts, wav

pytestmark = node.needs_node
RNG = np.random.default_rng(8)
NOISE = RNG.uniform(-1, 1, 9000).astype(np.float32)


def spectrogram(fft: int, hop: int, **options: Any) -> dict[str, Any]:
    return {"step": "spectrogram", "fft": fft, "hop": hop, **options}


def mel(bands: int, **options: Any) -> dict[str, Any]:
    return {"step": "mel", "rate": 16000, "bands": bands, **options}


LIBROSA = [spectrogram(400, 160, pad="zero"), mel(40, scale="slaney", norm="slaney", low=50.0, high=7600.0)]
TORCHAUDIO = [spectrogram(512, 256, window=400, pad="reflect"), mel(23)]
TENSORFLOW = [
    spectrogram(1024, 480, window=640, pad="none", align="start", power=1),
    mel(20, low=80.0, triangles="mel"),
    {"step": "log", "offset": 1e-6},
    {"step": "dct", "coefficients": 13, "scaling": "htk"},
]
STEPS: list[list[dict[str, Any]]] = [
    [],
    [{"step": "length", "samples": 500}],
    [{"step": "length", "samples": 12000}],
    [{"step": "frames", "length": 300, "hop": 170}],
    *([spectrogram(fft, 70)] for fft in (2, 3, 30, 49, 64, 101, 210, 256, 400)),
    [spectrogram(90, 31, window=37, pad="zero", align="start")],
    [spectrogram(91, 31, window=40, pad="none", power=1)],
    LIBROSA,
    [*LIBROSA, {"step": "log", "unit": "db", "range": 80.0}, {"step": "dct", "coefficients": 13}],
    [*TORCHAUDIO, {"step": "log", "unit": "log10", "floor": 1e-5}],
    TENSORFLOW,
    [*TENSORFLOW, {"step": "normalize", "mean": [3.0], "std": [2.5]}, {"step": "expand", "axis": 2}],
    [{"step": "cast", "dtype": "float32"}, {"step": "normalize", "scale": 32768.0}, {"step": "cast", "dtype": "int16"}],
]


def gateway(document: dict[str, Any], channels: Array, rate: int) -> Array:
    """What the gateway feeds a model that takes whatever type and sizes the steps make."""
    data = wav(channels.T.tobytes(), rate=rate, channels=len(channels), bits=32, form=3)
    for dtype in ("float32", "int16"):
        for rank in (1, 2, 3):
            try:
                made = Processing(document, ports([port("x", dtype, "n", *[None] * rank)]))
            except MsedgeError:
                continue
            return made.before({"file": texts(data)})["x"]
    raise AssertionError(document)


def case(document: dict[str, Any], channels: Array, rate: int, like: Array) -> dict[str, Any]:
    held = [base64.b64encode(channel.tobytes()).decode() for channel in channels]
    files = [{"rate": rate, "samples": held if len(held) > 1 else held[0]}]
    return {
        "declaration": check(document),
        "port": {"name": "x", "dtype": like.dtype.name, "shape": list(like.shape)},
        "files": files,
    }


@pytest.mark.parametrize(("rate", "channels"), [(16000, 1), (16000, 2), (44100, 1), (48000, 3), (8000, 1), (11025, 2)])
def test_numbers_are_those_of_the_gateway(rate: int, channels: int) -> None:
    sound = NOISE[: len(NOISE) // channels * channels].reshape(channels, -1)
    cases, wanted = [], []
    for steps in STEPS:
        document = declared([{"step": "audio", "rate": 16000}, *steps])
        wanted.append((steps, gateway(document, sound, rate)))
        cases.append(case(document, sound, rate, wanted[-1][1]))
    for text, (steps, result) in zip(node.prepared(cases), wanted, strict=True):
        assert "Error" not in text, (steps, text)
        found = np.frombuffer(base64.b64decode(text), result.dtype).reshape(result.shape)
        same_rate = rate == 16000
        if same_rate and not any(step["step"] == "spectrogram" for step in steps):
            np.testing.assert_array_equal(found, result, f"{steps}")
        elif result.dtype == np.int16:
            assert np.abs(found.astype(int) - result).max() <= 1
        else:
            # Logarithms of bands that hold almost nothing show what resampling leaves in them.
            logs = any(step["step"] == "log" for step in steps)
            bound = 1e-5 if logs and not same_rate else 1e-6
            np.testing.assert_allclose(found, result, rtol=0, atol=bound * max(1.0, np.abs(result).max()))


def test_drawn_sounds_and_steps(rounds: int = 120) -> None:
    """Short sounds too, which are reflected several times, rates without a common divisor, windows of every size."""
    rng = np.random.default_rng()
    cases, wanted = [], []
    while len(cases) < rounds:
        have, want = (int(rate) for rate in rng.choice([4000, 4001, 8000, 11025, 16000, 44100, 48000, 96000], 2))
        sound = rng.uniform(-1, 1, (1, int(rng.integers(1, 400)))).astype(np.float32)
        fft = int(rng.integers(2, 130))
        options = {
            "window": int(rng.integers(1, fft + 1)),
            "pad": str(rng.choice(["none", "zero", "reflect"])),
            "align": str(rng.choice(["center", "start"])),
            "power": int(rng.integers(1, 3)),
        }
        bands = {
            "low": float(rng.uniform(0, want / 8)),
            "high": float(rng.uniform(want / 4, want / 2)),
            "scale": str(rng.choice(["htk", "slaney"])),
            "norm": str(rng.choice(["none", "slaney"])),
            "triangles": str(rng.choice(["hz", "mel"])),
        }
        steps = [spectrogram(fft, int(rng.integers(1, 60)), **options), mel(int(rng.integers(1, 12)), **bands)]
        steps[1]["rate"] = want
        document = declared([{"step": "audio", "rate": want}, *steps])
        try:
            result = gateway(document, sound, have)
        except MsedgeError as error:
            assert "expected a sound of at least" in str(error)
            continue
        wanted.append((f"{have} {sound.shape} {document}", result))
        cases.append(case(document, sound, have, result))
    for text, (what, result) in zip(node.prepared(cases), wanted, strict=True):
        assert "Error" not in text, (what, text)
        found = np.frombuffer(base64.b64decode(text), result.dtype).reshape(result.shape)
        largest = max(1.0, float(np.abs(result).max()))
        np.testing.assert_allclose(found, result, rtol=0, atol=1e-6 * largest, err_msg=what)


def test_a_program_without_a_browser_has_no_microphone_and_no_camera() -> None:
    program = """
        import { camera, record } from "./msedge-media.mjs";
        const said = (promise) => promise.then(() => "", (error) => `${error.name}: ${error.message}`);
        console.log(JSON.stringify([await said(record()), await said(camera({})), await said(record({ seconds: 0 }))]));
    """
    command = [str(node.NODE), *node.OPTIONS, "--input-type=module", "-"]
    done = subprocess.run(command, input=program, cwd=node.WEB, capture_output=True, text=True, timeout=60)
    lacks = "expected a page with https or from localhost; browsers give it to no others"
    assert json.loads(done.stdout) == [
        f"MsedgeError: microphone: {lacks}",
        f"MsedgeError: camera: {lacks}",
        "MsedgeError: microphone: expected up to 600 seconds, got 0",
    ], done.stderr


def test_what_is_no_sound_is_told() -> None:
    like = np.zeros((1, 4), np.float32)
    length = {"step": "length", "samples": 4}

    def one(sound: Any, *steps: dict[str, Any], rate: int = 8000, **audio: Any) -> dict[str, Any]:
        made = case(declared([{"step": "audio", "rate": 8000, **audio}, *steps, length]), sound, rate, like)
        return {**made, "declaration": {"inputs": made["declaration"]["inputs"]}}

    good = NOISE[None, :50]
    cases = {
        "from 4000 to 192000, got 3999": one(good, rate=3999),
        "from 4000 to 192000, got 192001": one(good, rate=192001),
        "expected finite samples, got NaN": one(np.where(np.arange(50) == 7, np.nan, good).astype(np.float32)),
        "expected finite samples, got none": one(good[:, :0]),
        "at most 0.005 seconds, got 0.00625": one(good, max_seconds=0.005),
        "a list of equally long ones, got an Object": {
            **one(good),
            "files": [{"width": 1, "height": 1, "data": ""}],
        },
        "a sound of at least 51 samples, got 50": one(good, {"step": "frames", "length": 51, "hop": 1}),
        "the step resize of file is not one of length, frames, spectrogram": one(
            good, {"step": "resize", "size": [4, 4]}
        ),
        "x takes 1 rows, got 2": {**one(good), "files": one(good)["files"] * 2},
    }
    for part, text in zip(cases, node.prepared(list(cases.values())), strict=True):
        assert text.startswith("MsedgeError: processing: ") and part in text, (part, text)
