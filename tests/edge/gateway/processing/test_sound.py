from __future__ import annotations

import io
import struct
import wave
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.gateway.errors import GatewayError
from edge.gateway.processing import Processing
from edge.gateway.processing.resample import resample
from edge.gateway.processing.sound import SAMPLES, Audio, frame_count
from edge.gateway.processing.spectra import Dct, Log, Mel, Spectrogram, mel_bands
from edge.gateway.processing.wav import header, samples
from lite_runtime.graph import Array
from tests.edge.gateway.processing.files import declared, port, ports, texts, wav

RNG = np.random.default_rng(1)
NOISE = RNG.uniform(-1, 1, 4000).astype(np.float32)
GUID = bytes.fromhex("000000001000800000aa00389b71")


def decoded(data: bytes) -> Array:
    return samples(header(data))


def test_what_the_standard_library_writes() -> None:
    values = RNG.integers(-(1 << 15), 1 << 15, (50, 2)).astype("<i2")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44100)
        file.writeframes(values.tobytes())
    found = header(out.getvalue())
    assert (found.rate, found.channels, found.frames) == (44100, 2, 50)
    np.testing.assert_array_equal(samples(found), values / np.float32(32768))


@pytest.mark.parametrize(
    ("bits", "form", "data", "want"),
    [
        (8, 1, bytes([0, 128, 255]), [-1, 0, 127 / 128]),
        (16, 1, struct.pack("<3h", -32768, 0, 32767), [-1, 0, 32767 / 32768]),
        (24, 1, b"\0\0\x80" + b"\0\0\0" + b"\xff\xff\x7f" + b"\xff\xff\xff", [-1, 0, 1 - 2**-23, -(2**-23)]),
        (32, 1, struct.pack("<3i", -(2**31), 0, 2**30), [-1, 0, 0.5]),
        (32, 3, struct.pack("<3f", -1.5, 0, 0.25), [-1.5, 0, 0.25]),
        (64, 3, struct.pack("<3d", -1.5, 0, 0.25), [-1.5, 0, 0.25]),
    ],
)
def test_every_format(bits: int, form: int, data: bytes, want: list[float]) -> None:
    np.testing.assert_array_equal(decoded(wav(data, bits=bits, form=form))[:, 0], np.array(want, np.float32))
    extensible = struct.pack("<HHIH", 22, bits, 0, form) + GUID
    np.testing.assert_array_equal(
        decoded(wav(data, bits=bits, form=0xFFFE, extra=extensible)), decoded(wav(data, bits=bits, form=form))
    )


GOOD = wav(b"\1\0" * 50)
HOSTILE = {
    "nothing": b"",
    "noise": RNG.bytes(300),
    "no WAVE": GOOD.replace(b"WAVE", b"AVI "),
    "big-endian": GOOD.replace(b"RIFF", b"RIFX"),
    "head only": GOOD[:12],
    "cut off": GOOD[:-10],
    "cut off in the head": GOOD[:30],
    "no data": GOOD[: GOOD.index(b"data")],
    "data first": GOOD[:12] + GOOD[GOOD.index(b"data") :],
    "lying size": GOOD.replace(b"data" + struct.pack("<I", 100), b"data" + struct.pack("<I", 0xFFFFFFFF)),
    "lying size of another chunk": GOOD.replace(
        b"LIST" + struct.pack("<I", 3), b"LIST" + struct.pack("<I", 0xFFFFFFF0)
    ),
    "short fmt": GOOD.replace(b"fmt " + struct.pack("<I", 16), b"fmt " + struct.pack("<I", 6)),
    "no samples": wav(b""),
    "half a sample": wav(b"\0\0\0"),
    "MP3 inside": wav(b"\0" * 8, form=0x55),
    "12 bits": wav(b"\0" * 8, bits=12),
    "16-bit floats": wav(b"\0" * 8, form=3),
    "no channel": wav(b"\0" * 8, channels=0),
    "too many channels": wav(b"\0" * 130, channels=65, bits=8),
    "no rate": wav(b"\0" * 8, rate=0),
    "a rate like a bomb": wav(b"\0" * 8, rate=0xFFFFFFFF),
    "extensible without more": wav(b"\0" * 8, form=0xFFFE),
    "extensible of another kind": wav(b"\0" * 8, form=0xFFFE, extra=b"\0" * 24),
    "NaN": wav(struct.pack("<2f", 0, float("nan")), form=3, bits=32),
    "beyond float32": wav(struct.pack("<2d", 0, 1e300), form=3, bits=64),
}


def sound_processing(*steps: dict[str, Any], shape: tuple[int | str, ...] = ("n", "t"), **audio: Any) -> Processing:
    model = ports([port("x", "float32", *shape)])
    return Processing(declared([{"step": "audio", "rate": 8000, **audio}, *steps]), model)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sounds_are_refused(name: str) -> None:
    with pytest.raises(GatewayError) as caught:
        sound_processing().before({"file": texts(HOSTILE[name])})
    assert caught.value.status == 400 and "WAV" in str(caught.value)


@given(st.integers(0, 200), st.binary(min_size=1, max_size=8), st.booleans())
@settings(max_examples=150, deadline=None)
def test_damaged_sounds_are_refused_or_read(at: int, bytes_: bytes, cut: bool) -> None:
    at %= len(GOOD)
    data = GOOD[:at] + bytes_ + (b"" if cut else GOOD[at + len(bytes_) :])
    try:
        made = sound_processing(max_seconds=1).before({"file": texts(data)})["x"]
        assert np.isfinite(made).all()
    except GatewayError as error:
        assert error.status in (400, 413)


def test_seconds_are_counted_over_the_request() -> None:
    second = wav(b"\0\0" * 8000, rate=8000)
    assert sound_processing(max_seconds=2).before({"file": texts(second, second)})["x"].shape == (2, 8000)
    with pytest.raises(GatewayError, match="at most 2 seconds") as caught:
        sound_processing(max_seconds=2).before({"file": texts(second, second, second)})
    assert caught.value.status == 413


def test_memory_has_a_bound_whatever_is_declared() -> None:
    assert Audio(192_000, 36_000.0, False).limit * 192_000 == pytest.approx(SAMPLES)
    assert Audio(8000, 600.0, False).limit == 600
    assert frame_count("mel", None, 5, 5) is None


def test_channels_are_averaged_and_length_is_made() -> None:
    stereo = struct.pack("<6h", 8192, 16384, 0, 0, -8192, -16384)
    made = sound_processing({"step": "length", "samples": 5}, shape=("n", 5)).before(
        {"file": texts(wav(stereo, rate=8000, channels=2))}
    )
    np.testing.assert_array_equal(made["x"], [[0.375, 0, -0.375, 0, 0]])
    made = sound_processing({"step": "length", "samples": 2}, shape=("n", 2)).before(
        {"file": texts(wav(stereo, rate=8000))}
    )
    np.testing.assert_array_equal(made["x"], [[0.25, 0.5]])


# resampling


def slowly(array: Array, have: int, want: int) -> Array:
    """The sum from resample's docstring, sample by sample."""
    factor = 0.99 * min(1.0, want / have)
    made = []
    for j in range(-(-len(array) * want // have)):
        at = factor * (np.arange(len(array)) - j * have / want)
        weights = factor * np.sinc(at) * np.cos(np.pi * at / 12) ** 2
        made.append(np.sum(np.where(np.abs(at) < 6, array.astype(np.float64) * weights, 0)))
    return np.array(made)


@given(
    st.integers(1, 120),
    st.sampled_from([4000, 8000, 11025, 16000, 22050, 44100, 48000]),
    st.sampled_from([8000, 16000, 44100]),
)
@settings(max_examples=40, deadline=None)
def test_resampling_is_its_formula(length: int, have: int, want: int) -> None:
    expected = slowly(NOISE[:length], have, want) if have != want else NOISE[:length]
    np.testing.assert_allclose(resample(NOISE[:length], have, want), expected, atol=3e-6)


@pytest.mark.parametrize(("have", "want"), [(44100, 16000), (8000, 16000), (16000, 8000), (48000, 44100)])
def test_a_tone_stays_the_tone(have: int, want: int) -> None:
    tone = np.sin(2 * np.pi * 500 * np.arange(have // 10) / have).astype(np.float32)
    made = resample(tone, have, want)
    expected = np.sin(2 * np.pi * 500 * np.arange(len(made)) / want)
    assert np.abs(made - expected)[100:-100].max() < 5e-3


def test_what_is_too_high_for_the_new_rate_is_gone() -> None:
    tone = np.sin(2 * np.pi * 6000 * np.arange(4000) / 16000).astype(np.float32)
    assert np.abs(resample(tone, 16000, 8000))[50:-50].max() < 0.02


def test_no_length_depends_on_how_much_is_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = resample(NOISE, 44100, 16000)
    monkeypatch.setattr("edge.gateway.processing.resample._CHUNK", 1000)
    np.testing.assert_array_equal(resample(NOISE, 44100, 16000), whole)


# spectra


def test_a_spectrogram_is_its_formula() -> None:
    made = Spectrogram(fft=64, window=40, hop=16, pad="none", align="center", power=2).apply(NOISE[:200])
    window = np.zeros(64)
    window[12:52] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(40) / 40)
    waves = np.exp(-2j * np.pi * np.outer(np.arange(64), np.arange(33)) / 64)
    want = [np.abs((NOISE[at : at + 64] * window) @ waves) ** 2 for at in range(0, 200 - 63, 16)]
    assert made.shape == (9, 33) and made.dtype == np.float32
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5)


def test_a_spectrogram_that_starts_with_its_window() -> None:
    made = Spectrogram(fft=64, window=40, hop=20, pad="none", align="start", power=1).apply(NOISE[:100])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(40) / 40)
    want = [np.abs(np.fft.rfft(NOISE[at : at + 40] * window, 64)) for at in (0, 20, 40, 60)]
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5)


def test_padding() -> None:
    plain = Spectrogram(64, None, 16, "none", "center", 2)
    for pad, mode in (("zero", "constant"), ("reflect", "reflect")):
        padded = np.pad(NOISE[:200], 32, mode)  # type: ignore[call-overload]
        np.testing.assert_array_equal(
            Spectrogram(64, None, 16, pad, "center", 2).apply(NOISE[:200]), plain.apply(padded)
        )


# librosa 0.11: melspectrogram and power_to_db(top_db=60) of CHIRP, frame 7; mfcc of that, frame 20; a magnitude
# spectrogram's HTK bands without norm, log(x + 1e-3), frame 0.
TIME = np.arange(2000) / 8000
CHIRP = (np.sin(2 * np.pi * (300 + 700 * TIME) * TIME) + 0.25 * np.cos(2 * np.pi * 2500 * TIME)).astype(np.float32)
LIBROSA_MEL = [-6.1148, 13.6047, 6.6490, -42.2633, *[-46.0610] * 5, -5.5293, -4.0292, -46.0610]
LIBROSA_MFCC = [-28.6523, 15.4366, -4.5613, -11.9915, -18.9987, -0.7945]
LIBROSA_HTK = [3.7103, 4.6675, 4.4719, 3.1314, 2.4419, 1.9853, 1.6441, 1.3695, 1.1553, 3.1168, 2.6082, 0.8857]


def test_librosas_features() -> None:
    bins = Spectrogram(256, 200, 100, "zero", "center", 2).apply(CHIRP)
    bands = Mel(8000, 12, 50.0, 3800.0, "slaney", "slaney", "hz").apply(bins)
    mel = Log("db", 1e-10, 0.0, 60.0).apply(bands)
    np.testing.assert_allclose(mel[7], LIBROSA_MEL, atol=2e-3)
    np.testing.assert_allclose(Dct(6, "orthonormal").apply(mel)[20], LIBROSA_MFCC, atol=2e-3)
    magnitudes = Spectrogram(256, None, 100, "reflect", "center", 1).apply(CHIRP)
    htk = Log("ln", 1e-10, 1e-3, None).apply(Mel(8000, 12, 0.0, None, "htk", "none", "hz").apply(magnitudes))
    np.testing.assert_allclose(htk[0], LIBROSA_HTK, atol=1e-3)


def test_tensorflows_triangles_are_straight_in_mel() -> None:
    """tf.signal.linear_to_mel_weight_matrix, from its definition."""
    made = mel_bands(Mel(8000, 6, 80.0, 3900.0, "htk", "none", "mel"), 65)

    def mel(hertz: Array) -> Array:
        return np.asarray(1127.0 * np.log(1.0 + hertz / 700.0))

    edges, at = np.linspace(mel(np.array(80.0)), mel(np.array(3900.0)), 8), mel(np.linspace(0, 4000, 65))[:, None]
    rise, fall = (at - edges[:-2]) / (edges[1:-1] - edges[:-2]), (edges[2:] - at) / (edges[2:] - edges[1:-1])
    np.testing.assert_allclose(made, np.maximum(0, np.minimum(rise, fall)), atol=2e-4)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_neighbouring_triangles_meet_at_their_centres(scale: str) -> None:
    bands = mel_bands(Mel(16000, 10, 100.0, 7000.0, scale, "none", "hz"), 4097)
    peaks = bands.argmax(0)
    assert (np.diff(peaks) > 0).all() and np.abs(bands.max(0) - 1).max() < 0.02
    between = bands[peaks[0] : peaks[-1]].sum(1)
    np.testing.assert_allclose(between, 1.0, atol=1e-9)
    assert bands[: int(100 / 8000 * 4096)].sum() == 0 and bands[int(7000 / 8000 * 4096) + 1 :].sum() == 0


def test_known_points_of_the_scale() -> None:
    """1000 Hz is 15 Slaney mel and close to 1000 HTK mel; norm "slaney" makes triangles of one area."""
    from edge.gateway.processing.spectra import _SCALES

    assert _SCALES["slaney"][0](np.array(1000.0)) == pytest.approx(15.0)
    assert _SCALES["slaney"][0](np.array(6400.0)) == pytest.approx(42.0)
    assert _SCALES["htk"][0](np.array(1000.0)) == pytest.approx(999.9855)
    for there, back in _SCALES.values():
        np.testing.assert_allclose(
            back(there(np.array([0.0, 50, 999, 1001, 8000]))), [0, 50, 999, 1001, 8000], atol=1e-8
        )
    bands = mel_bands(Mel(16000, 8, 0.0, None, "slaney", "slaney", "hz"), 8193)
    np.testing.assert_allclose(bands.sum(0) * (8000 / 8192), 1.0, atol=2e-3)


def test_logarithms() -> None:
    values = np.array([[0.0, 1e-3, 1.0, 100.0]], np.float32)
    np.testing.assert_allclose(Log("ln", 1e-6, 0.0, None).apply(values), np.log([[1e-6, 1e-3, 1, 100]]), rtol=1e-6)
    np.testing.assert_allclose(Log("log10", 1e-10, 1.0, None).apply(values), np.log10(values + 1.0), atol=1e-6)
    np.testing.assert_allclose(Log("db", 1e-10, 0.0, 30.0).apply(values), [[-10, -10, 0, 20]], atol=1e-5)


def test_the_cosine_transform_is_scipys() -> None:
    from scipy.fft import dct

    made = Dct(5, "orthonormal").apply(NOISE.reshape(100, 40))
    np.testing.assert_allclose(made, dct(NOISE.reshape(100, 40).astype(np.float64), norm="ortho")[:, :5], atol=1e-6)
    htk = Dct(5, "htk").apply(NOISE.reshape(100, 40))
    np.testing.assert_allclose(htk[:, 0], made[:, 0] * np.sqrt(2), rtol=1e-5)
    np.testing.assert_array_equal(htk[:, 1:], made[:, 1:])


def test_keyword_spotting_from_a_file() -> None:
    steps = [
        {"step": "length", "samples": 8000},
        {"step": "spectrogram", "fft": 256, "window": 200, "hop": 80},
        {"step": "mel", "rate": 8000, "bands": 20},
        {"step": "log", "unit": "db", "range": 80},
        {"step": "dct", "coefficients": 10},
        {"step": "expand", "axis": 2},
    ]
    processing = sound_processing(*steps, shape=("n", 101, 10, 1))
    ints = (NOISE * 20000).astype("<i2").tobytes()
    made = processing.before({"file": texts(wav(ints, rate=8000), wav(ints, rate=16000))})["x"]
    assert made.shape == (2, 101, 10, 1) and np.isfinite(made).all()
    alone = processing.before({"file": texts(wav(ints, rate=16000))})["x"]
    np.testing.assert_array_equal(alone[0], made[1])


def test_frames_of_a_sound_too_short_or_too_long() -> None:
    processing = sound_processing({"step": "frames", "length": 20, "hop": 10}, shape=("n", "frames", 20))
    np.testing.assert_array_equal(
        processing.before({"file": texts(wav(struct.pack("<35h", *range(35)), rate=8000))})["x"][0, 1] * 32768,
        np.arange(10, 30),
    )
    with pytest.raises(GatewayError, match="at least 20 samples, got 3") as caught:
        processing.before({"file": texts(wav(b"\0" * 6, rate=8000))})
    assert caught.value.status == 400
    dense = sound_processing({"step": "frames", "length": 8000, "hop": 1}, shape=("n", "frames", 8000))
    with pytest.raises(GatewayError, match="shorter one") as caught:
        dense.before({"file": texts(wav(b"\0\0" * 20_000, rate=8000))})
    assert caught.value.status == 413
