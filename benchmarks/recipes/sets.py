"""The data of the recipes: ((inputs, labels) for training, (inputs, labels) for the test) of real data.

`folder`: where the files of the data sets are (docs/zoo.md); sets of scikit-learn need none. `limit`: the most training
examples, drawn at random. Rows of both parts come from other people, recordings or places in the text wherever the set
says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.accuracy import examples
from benchmarks.recipes import texts, writing
from lite_runtime.graph import Array

__all__ = [
    "anomalies", "canvases", "cases", "characters", "cifar", "continued", "digits", "keywords", "masks",
    "messages", "mnist", "motion", "scenes", "speakers", "speeches", "spoken", "summaries", "superpixels", "table",
    "wrist",
]  # fmt: skip

Part: TypeAlias = tuple[Any, Any]
Parts: TypeAlias = tuple[Part, Part]


def _some(count: int, limit: int) -> Array:
    """Indices of at most `limit` rows, in order."""
    chosen = np.random.default_rng(0).permutation(count)[: limit or count]
    return np.sort(chosen)


def _limited(found: examples.Examples, limit: int, tested: int = 0) -> Parts:
    (x, y), (held, labels) = found
    rows, others = _some(len(x), limit), _some(len(held), tested)
    return (x[rows], y[rows]), (held[others], labels[others])


def _mnist(folder: str, limit: int, tested: int) -> examples.Examples:
    with np.load(Path(folder) / "mnist.npz") as file:
        train, test = ((file[f"x_{part}"], file[f"y_{part}"].astype(np.int32)) for part in ("train", "test"))
    (x, y), (held, labels) = _limited((train, test), limit, tested)
    return (x, y), (held, labels)


def mnist(folder: str, limit: int = 12000, tested: int = 5000) -> Parts:
    """Handwritten digits (LeCun et al., 1998), 28 x 28 pixels from 0 to 1 [1, 28, 28]; the test has other writers."""
    (x, y), (held, labels) = _mnist(folder, limit, tested)
    return (_grey(x), y), (_grey(held), labels)


def _grey(x: Array) -> Array:
    return x[:, None].astype(np.float32) / np.float32(255)


def digits() -> Parts:
    """scikit-learn's handwritten digits, 8 x 8 pixels from 0 to 1 [1, 8, 8]; every fourth row is for the test."""
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = found.images[:, None].astype(np.float32) / 16, found.target.astype(np.int32)
    test = np.arange(len(x)) % 4 == 3
    return (x[~test], y[~test]), (x[test], y[test])


def cifar(folder: str) -> Parts:
    """500 training images of CIFAR-10 (Krizhevsky, 2009), each also mirrored, and MLPerf Tiny's 200 test images; 32
    x 32 pixels from 0 to 1 [3, 32, 32]."""
    parts = []
    for name in ("cifar10_calibration", "mlperftiny_ic01"):
        with np.load(Path(folder) / f"{name}.npz") as file:
            x, y = file["x"].transpose(0, 3, 1, 2).astype(np.float32) / 255, file["y"].astype(np.int32)
        parts.append((np.ascontiguousarray(x, np.float32), y))
    (x, y), test = parts
    return (np.concatenate([x, x[..., ::-1]]), np.tile(y, 2)), test


def scenes(folder: str, limit: int = 6000, tested: int = 2000) -> Parts:
    """Digits among pieces of others, in uneven light and noise, 48 x 48 pixels in colour [3, 48, 48]."""
    return _limited(examples.cluttered_digits(Path(folder)), limit, tested)


def masks(folder: str, limit: int = 2500, tested: int = 1000) -> Parts:
    """The same images, and which pixels belong to the digit [1, 48, 48]."""
    return _limited(examples.digit_masks(Path(folder)), limit, tested)


def characters(folder: str, limit: int = 9000) -> Parts:
    """136 handwritten characters of five alphabets (Omniglot; Lake et al., 2015) [1, 52, 52]; the test has other
    writers."""
    return _limited(examples.characters(Path(folder)), limit)


def motion(folder: str) -> Parts:
    """Six activities from a phone's inertial sensors (UCI HAR; Anguita et al., 2013), 128 steps [9, 1, 128]; the test
    has the last quarter of each person's windows."""
    return examples.motion(Path(folder))


def wrist(folder: str) -> Parts:
    """Fourteen activities from a wrist's accelerometer (Bruno et al., 2013), 3 s [3, 1, 96]; the test has other
    recordings."""
    return examples.wrist(Path(folder))


def spoken(folder: str) -> Parts:
    """Spoken digits (Free Spoken Digit Dataset) as 32 mel bands over 48 frames [1, 32, 48]; the test has other
    recordings."""
    return examples.spoken_digits(Path(folder))


def keywords(folder: str) -> Parts:
    """The same with the bands as channels [32, 1, 48]."""
    return tuple((np.ascontiguousarray(x.swapaxes(1, 2)), y) for x, y in spoken(folder))  # type: ignore[return-value]


def anomalies(folder: str, frames: int = 5, every: int = 8) -> Parts:
    """Sounds of toy cars (MLPerf Tiny ad01; ToyADMOS), `frames` frames of 128 mel bands [frames * 128]: half of the
    normal recordings for training, the others and the anomalous ones for the test. Labels: the inputs as `x`, whether
    they are anomalous as `odd`, and which recording they are of as `clip`."""
    with np.load(Path(folder) / "mlperftiny_ad01.npz") as file:
        clips, odd = file["x"], file["y"] > 0
    normal = np.flatnonzero(~odd)
    trained = normal[::2]
    tested = np.setdiff1d(np.arange(len(clips)), trained)
    mean, spread = clips[trained].mean((0, 1)), clips[trained].std()
    parts = []
    for rows, hop in ((trained, every // 2), (tested, every)):
        windows = np.lib.stride_tricks.sliding_window_view((clips[rows] - mean) / spread, frames, axis=1)[:, ::hop]
        x = np.ascontiguousarray(windows.swapaxes(2, 3), np.float32).reshape(-1, frames * clips.shape[2])
        clip = np.repeat(np.arange(len(rows)), windows.shape[1])
        parts.append((x, {"x": x, "odd": odd[rows][clip].astype(np.float32), "clip": clip.astype(np.float32)}))
    return parts[0], parts[1]


def table(name: str) -> Parts:
    """A table of scikit-learn, iris, wine or breast_cancer, in standard units; every fourth row is for the test."""
    from sklearn import datasets

    makers: Mapping[str, Callable[..., Any]] = {
        "iris": datasets.load_iris, "wine": datasets.load_wine, "breast_cancer": datasets.load_breast_cancer
    }  # fmt: skip
    x, y = makers[name](return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[np.arange(len(x)) % 4 > 0], order[np.arange(len(x)) % 4 == 0]
    x = ((x - x[train].mean(0)) / x[train].std(0)).astype(np.float32)
    return (x[train], y[train].astype(np.int32)), (x[test], y[test].astype(np.int32))


_MOST = 3
"""Digits on a canvas."""


def canvases(folder: str, side: int = 96, limit: int = 3000, tested: int = 500) -> Parts:
    """One to three digits of MNIST, 14 to 42 pixels high, that hardly overlap on a black canvas [1, side, side].
    Labels: `boxes` [3, 4] as x1, y1, x2, y2 around the ink, and `classes` [3], -1 for none."""
    (x, y), (held, labels) = _mnist(folder, 0, 0)
    return _canvases(x, y, limit, side, 1), _canvases(held, labels, tested, side, 2)


def _canvases(digits: Array, kinds: Array, count: int, side: int, seed: int) -> Part:
    rng = np.random.default_rng(seed)
    x = np.zeros((count, 1, side, side), np.float32)
    boxes, classes = np.zeros((count, _MOST, 4), np.float32), np.full((count, _MOST), -1, np.int32)
    for i in range(count):
        free = np.ones((side, side), bool)
        for k in range(rng.integers(1, _MOST + 1)):
            which, size = rng.integers(len(digits)), int(rng.integers(14, 43))
            at = (np.arange(size) * 28) // size
            digit = digits[which][at][:, at] / np.float32(255)
            rows, columns = np.flatnonzero(digit.any(1)), np.flatnonzero(digit.any(0))
            digit = digit[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
            height, width = digit.shape
            for _ in range(20):
                top, left = (int(rng.integers(0, side - n + 1)) for n in (height, width))
                place = np.s_[top : top + height, left : left + width]
                if free[place].all():
                    x[i, 0][place], free[place] = digit, False
                    boxes[i, k], classes[i, k] = (left, top, left + width, top + height), kinds[which]
                    break
    return x, {"boxes": boxes, "classes": classes}


def superpixels(folder: str, limit: int = 4000, tested: int = 1000) -> Parts:
    """Digits of MNIST as graphs of 49 nodes, 4 x 4 pixels each: `x` [49, 7] of brightness, the place of its middle and
    four moments of the pixels (how it changes across and down, and in which direction a stroke runs), in standard
    units; `adjacency` [49, 49] of the eight nearest, weighted by distance and likeness, and normalised as a GCN takes
    it."""
    (x, y), (held, labels) = _mnist(folder, limit, tested)
    known, others = _graphs(x), _graphs(held)
    mean, spread = known["x"].mean((0, 1)), known["x"].std((0, 1))
    known, others = (graphs | {"x": (graphs["x"] - mean) / spread} for graphs in (known, others))
    return (known, y), (others, labels)


_NEAR = 0.01
"""By which squared distances, in sides of an image, are divided: a neighbour beside a node has 0.14 of its own weight.
With 0.04 a node is a sixth of its own average, and three layers blur a digit of seven nodes a side."""


def _graphs(images: Array) -> dict[str, Array]:
    blocks = images.astype(np.float32).reshape(-1, 7, 4, 7, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 49, 16) / 255
    down, across = (axis.reshape(-1).astype(np.float32) for axis in np.mgrid[:4, :4])
    mass = blocks.sum(2)
    inside = np.stack([(blocks @ axis + 0.75e-3) / (mass + 0.5e-3) for axis in (across, down)], 2)
    corner = 4 * np.stack([axis.reshape(-1) for axis in np.mgrid[:7, :7][::-1]], 1)
    places = (inside + corner) / 28
    right, low = across - 1.5, down - 1.5
    moments = np.stack([blocks @ each / 16 for each in (right, low, right * low, right * right - low * low)], 2)
    x = np.concatenate([mass[..., None] / 16, places, moments], 2).astype(np.float32)
    apart = ((places[:, :, None] - places[:, None]) ** 2).sum(3)
    near = np.exp(-apart / _NEAR - 4 * (x[:, :, None, 0] - x[:, None, :, 0]) ** 2)
    least = np.sort(near, 2)[:, :, -9, None]
    linked = np.where((near >= least) | (near >= least.swapaxes(1, 2)), near, 0)  # each node is near itself
    degree = linked.sum(2)
    adjacency = linked / np.sqrt(degree[:, :, None] * degree[:, None])
    return {"x": x, "adjacency": adjacency.astype(np.float32)}


def continued(folder: str, limit: int = 6000) -> Parts:
    """64 bytes of plays (tiny Shakespeare), and the byte after each; the last tenth is for the test."""
    return _limited(examples.text(Path(folder)), limit, 250)


_SPEECH = re.compile(r"(?m)^([A-Z][A-Za-z' ]{2,30}):\n(.+(?:\n.+)*)")


def _speeches(folder: str) -> list[tuple[str, list[str]]]:
    """Who speaks, and the words, in the text's order."""
    text = (Path(folder) / "tinyshakespeare.txt").read_text(encoding="utf-8")
    return [(found[1], re.findall(r"[a-z']+", found[2].lower())) for found in _SPEECH.finditer(text)]


def _ids(words: list[list[str]], vocabulary: int, length: int, known: Mapping[str, int] | None = None) -> Any:
    """Ids by frequency from 2 on, 1 for other words, 0 behind the end [n, length], and the table of words."""
    if known is None:
        counted = Counter(word for text in words for word in text).most_common(vocabulary - 2)
        known = {word: i for i, (word, _) in enumerate(counted, 2)}
    ids = np.zeros((len(words), length), np.int32)
    for row, text in zip(ids, words, strict=True):
        found = [known.get(word, 1) for word in text[:length]]
        row[: len(found)] = found
    return ids, known


def speakers(folder: str, count: int = 5, length: int = 32, vocabulary: int = 2000, hop: int = 8) -> Parts:
    """Which of the `count` people with most to say says it: a token of its own, whose vector is classified, and the
    first words of each of their speeches of eight words or more, as ids [length]; every fourth speech is for the test.
    Training has also what begins at every `hop`-th word of a speech, as long as half a row is left."""
    ids, labels, test, _ = _by_speaker(folder, count, 1000, vocabulary - 1)
    whole = np.concatenate([np.full((len(ids), 1), vocabulary - 1, np.int32), ids], 1)
    x, y = [whole[~test][:, :length]], [labels[~test]]
    for at in range(hop, ids.shape[1], hop):
        left = (ids[:, at:] > 0).sum(1) >= length // 2
        rows = np.concatenate([whole[:, :1], whole[:, 1 + at : length + at]], 1)[left & ~test]
        if rows.shape[1] < length:
            break
        x.append(rows)
        y.append(labels[left & ~test])
    return (np.concatenate(x), np.concatenate(y)), (whole[test][:, :length], labels[test])


def speeches(folder: str, count: int = 40, length: int = 32, vocabulary: int = 3000) -> Parts:
    """Speeches and who says them: `query` [length] of words and `item` [1], the person from 1 on; labels are persons
    from 0 on. Every fourth speech is for the test."""
    ids, labels, test, _ = _by_speaker(folder, count, length, vocabulary)
    parts = [({"query": ids[rows], "item": labels[rows, None] + 1}, labels[rows]) for rows in (~test, test)]
    return parts[0], parts[1]


def _by_speaker(folder: str, count: int, length: int, vocabulary: int) -> tuple[Array, Array, Array, list[str]]:
    found = [(who, words) for who, words in _speeches(folder) if len(words) >= 8]
    names = [who for who, _ in Counter(who for who, _ in found).most_common(count)]
    kept = [(names.index(who), words) for who, words in found if who in names]
    test = np.arange(len(kept)) % 4 == 3
    _, known = _ids([words for (_, words), held in zip(kept, test, strict=True) if not held], vocabulary, length)
    ids, _ = _ids([words for _, words in kept], vocabulary, length, known)
    return ids, np.array([who for who, _ in kept], np.int32), test, names


def cases(folder: str, length: int = 32, limit: int = 16000, tested: int = 500) -> Parts:
    """Capitals and punctuation restored: `x` [length] is the text in small letters without punctuation, as bytes with 0
    behind them; `target` [length] is what was written so far, behind a 1; labels are the text itself. The last tenth of
    the text is for the test."""
    whole = np.frombuffer((Path(folder) / "tinyshakespeare.txt").read_bytes(), np.uint8).astype(np.int32)
    cut = len(whole) * 9 // 10
    parts = []
    for part, most in ((whole[:cut], limit), (whole[cut:], tested)):
        starts = np.flatnonzero(np.isin(part[:-length], list(b" \n"))) + 1
        starts = starts[_some(len(starts), most)]
        y = part[starts[:, None] + np.arange(length)]
        target = np.concatenate([np.ones((len(y), 1), np.int32), y[:, :-1]], 1)
        parts.append(({"x": np.stack([_plain(row) for row in y]), "target": target}, y))
    return parts[0], parts[1]


def _plain(row: Array) -> Array:
    """Small letters and single spaces, with padding behind them."""
    text = " ".join(re.sub(r"[^a-z\s]", "", bytes(row.tolist()).decode("ascii").lower()).split())
    return np.pad(np.frombuffer(text.encode(), np.uint8).astype(np.int32), (0, len(row) - len(text)))


def summaries(
    folder: str, length: int = 40, target_length: int = 20, similar: bool = True, limit: int = 0, tested: int = 300
) -> Parts:
    """Functions and classes of Python packages, and the first paragraph of their docstrings, the summary
    (`benchmarks.recipes.texts`). `x` [target_length + 1 + length]: the summary of the training pairs' most similar text
    in other files, a start token, and the name, the arguments and the rest of the docstring; what is longer is cut.
    `target` [target_length]: what was written so far behind a start token; labels are the summary's tokens, an end, and
    zeros. Longer summaries are left out. The test has other files of the packages. Without `similar`, `x` [length] is
    the text alone."""
    return _pairs(folder, "docstrings", length, target_length, similar, limit, tested, cut=True)


def messages(
    folder: str, length: int = 20, target_length: int = 20, similar: bool = True, limit: int = 0, tested: int = 300
) -> Parts:
    """English messages of programs and the German ones, as `summaries`; what is longer is left out on both sides. The
    test has other messages."""
    return _pairs(folder, "messages", length, target_length, similar, limit, tested, cut=False)


def _pairs(
    folder: str, name: str, length: int, target_length: int, similar: bool, limit: int, tested: int, *, cut: bool
) -> Parts:
    place = Path(folder)
    found, tokenizer = texts.read(place, name), writing.tokenizer_of(place, name)
    near, parts = target_length if similar else 0, []
    for part, most in zip(found, (limit, tested), strict=True):
        ids = [[tokenizer.encode(text, special=False, add=False) for text in each] for each in part]
        kept = [each for each in ids if (cut or len(each[0]) <= length) and len(each[1]) < target_length]
        kept = [kept[i] for i in _some(len(kept), most)]
        y = np.zeros((len(kept), target_length), np.int32)
        for label, (_, wanted, _) in zip(y, kept, strict=True):
            label[: len(wanted) + 1] = [*wanted, texts.END]
        x = np.stack([writing.source(text, other, length, near) for text, _, other in kept])
        target = np.concatenate([np.full((len(y), 1), texts.START, np.int32), y[:, :-1]], 1)
        parts.append(({"x": x, "target": target}, y))
    return parts[0], parts[1]
