"""Transforms that are data: what they compute, and pipelines with them in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from cloud import data
from cloud.errors import DataError

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 5, 3)).astype(np.uint8)


def batch(pipeline: data.Pipeline) -> dict[str, Any]:
    found: dict[str, Any] = next(pipeline.batches(seed=1))
    return found


def images() -> data.Pipeline:
    return data.arrays({"x": IMAGES, "labels": np.arange(12)})


def test_numbers() -> None:
    found = batch(images().scale("x", 2.0, -1.0).batch(12))["x"]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, IMAGES.astype(np.float32) * 2 - 1)
    np.testing.assert_allclose(batch(images().scale("x").batch(12))["x"], IMAGES / 255, rtol=1e-6)
    assert batch(images().cast("x", "bfloat16").batch(12))["x"].dtype == ml_dtypes.bfloat16
    with pytest.raises(DataError, match=r"expected a dtype of .* got 'object'"):
        images().cast("x", "object")


def test_flips_and_crops_are_drawn_for_each_element_and_epoch() -> None:
    found = batch(images().flip("x").batch(12))["x"]
    flipped = [not (a == b).all() for a, b in zip(found, IMAGES, strict=True)]
    assert 0 < sum(flipped) < 12
    for was, now, before in zip(flipped, found, IMAGES, strict=True):
        np.testing.assert_array_equal(now, before[:, ::-1] if was else before)
    pipeline = images().crop("x", (4, 4), padding=1).batch(12)
    crops = batch(pipeline)["x"]
    wide = np.pad(IMAGES, ((0, 0), (1, 1), (1, 1), (0, 0)))
    places = {(r, c) for r in range(5) for c in range(4)}
    for crop, image in zip(crops, wide, strict=True):
        assert any((image[r : r + 4, c : c + 4] == crop).all() for r, c in places)
    assert not (next(pipeline.batches(seed=1, epoch=1))["x"] == crops).all()
    with pytest.raises(DataError, match="at least 9 x 9 with its padding, got 8 x 7"):
        batch(images().crop("x", (9, 9), padding=1).batch(2))


def ragged() -> data.Pipeline:
    return data.source([{"x": np.arange(k, dtype=np.int32), "labels": k} for k in range(6)])


def test_ragged_values_are_padded() -> None:
    found = batch(ragged().pad("x", 3, -1, mask="seen").batch(6))
    assert found["x"].tolist() == [[-1] * 3, [0, -1, -1], [0, 1, -1], *[[0, 1, 2]] * 3]
    np.testing.assert_array_equal(found["seen"], found["x"] >= 0)
    with pytest.raises(DataError, match=r"value\['x'\] is int32\[0\] in row 0 and int32\[1\] in row 1; \.pad"):
        batch(ragged().batch(6))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    words = {"[UNK]": 0, "a": 1, "cat": 2, "sat": 3, "[CLS]": 4}
    made = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 4)])
    made.add_special_tokens(["[UNK]", "[CLS]"])
    made.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_texts_become_tokens(tokenizer: Path) -> None:
    texts = data.source([{"x": text} for text in ("a cat sat", "dog", "[CLS] a")])
    found = batch(texts.tokenize("x", tokenizer).pad("x", 4).batch(3))["x"]
    assert found.dtype == np.int32 and found[:2].tolist() == [[4, 1, 2, 3], [4, 0, 0, 0]]
    assert batch(texts.tokenize("x", tokenizer / "tokenizer.json", ends=False).pad("x", 3).batch(2))["x"].tolist() == [
        [1, 2, 3], [0, 0, 0],
    ]  # fmt: skip
    with pytest.raises(DataError, match="failed at element 0: TypeError: expected a string, got int"):
        batch(data.source([{"x": 3}]).tokenize("x", tokenizer).batch(1))
    (tokenizer / "other.json").write_text("{")
    with pytest.raises(DataError, match="has no tokenizer that can be read"):
        batch(texts.tokenize("x", tokenizer / "other.json").batch(1))


def test_transforms_are_saved_by_their_settings(tokenizer: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.records"
    data.write_records(path, [{"x": "a cat", "image": IMAGES[k], "labels": k} for k in range(12)])
    pipeline = data.records(path).shuffle().tokenize("x", tokenizer).pad("x", 5, mask="m")
    pipeline = pipeline.flip("image").crop("image", (4, 4)).scale("image").cast("labels", "int32").batch(4)
    again = data.from_dict(json.loads(json.dumps(pipeline.to_dict())))
    assert again.fingerprint == pipeline.fingerprint and again.digest() == pipeline.digest()
    for one, other in zip(again.batches(3), pipeline.batches(3), strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])
    before = pipeline.digest()
    (tokenizer / "tokenizer.json").write_text((tokenizer / "tokenizer.json").read_text() + " ")
    assert pipeline.digest() != before
    assert data.arrays({"x": IMAGES}).scale("x", 2).fingerprint != data.arrays({"x": IMAGES}).scale("x", 3).fingerprint
    plain = pipeline.to_dict()
    text = json.dumps(plain)
    for change, message in (
        (text.replace('"transform": "scale"', '"transform": "eval"'), "expected a transform of cast"),
        (text.replace('"dtype": "int32"', '"dtype": 3'), "expected str, got 3"),
        (text.replace('"dtype": "int32"', '"dtype": "object"'), "expected a dtype of"),
    ):
        with pytest.raises(DataError, match=message):
            data.from_dict(json.loads(change))
