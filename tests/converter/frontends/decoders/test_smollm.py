"""SmolLM2 as its file is published, if the user's cache has it: against the second reader and plain NumPy."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from converter import Conversion, convert
from converter.frontends.gguf import matrix_of
from converter.frontends.gguf.reader import read
from lite_runtime import bundle
from lite_runtime.language import Tokenizer
from tests.converter.frontends.decoders.plain import logits
from tests.converter.frontends.decoders.running import logits_of
from tests.converter.frontends.decoders.test_gguf_reader import wide
from tests.language.models import model

TEXT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is"
NUMBERS = {"layers": 30, "heads": 9, "kv_heads": 3, "epsilon": 1e-5, "base": 100_000.0}


@pytest.fixture(scope="module")
def file() -> Path:
    return model("smollm2")


@pytest.fixture(scope="module")
def made(file: Path) -> Conversion:
    return convert(file, activations="float32")


def test_tensors_have_the_bits_of_the_second_reader(file: Path) -> None:
    """Every ninth, and the embedding."""
    found, theirs = read(file), gguf.GGUFReader(file)
    second = {tensor.name: tensor for tensor in theirs.tensors}
    assert found.tensors.keys() == second.keys() and len(second) == 272
    for name in [*sorted(found.tensors)[::9], "token_embd.weight"]:
        tensor = second[name]
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(wide(found.tensors[name]), wanted)
    assert found.metadata["tokenizer.ggml.tokens"] == theirs.fields["tokenizer.ggml.tokens"].contents()


def test_logits_are_those_of_plain_numpy(file: Path, made: Conversion) -> None:
    tensors = read(file).tensors
    ids = Tokenizer.from_bytes(bytes(bundle.read(made.bundle).section("tokenizer"))).encode(TEXT)
    wanted = logits(ids, lambda name: wide(tensors[name]), NUMBERS)
    for backend in ("auto", "reference"):
        found = logits_of(made.bundle, ids, backend, first=len(ids) - 3)
        assert np.abs(found - wanted).max() < 1e-3 * np.ptp(wanted), backend
    fast = logits_of(convert(file).bundle, ids)
    assert (fast.argmax(-1) == wanted.argmax(-1)).mean() > 0.9
    tokenizer = Tokenizer.from_bytes(bytes(bundle.read(made.bundle).section("tokenizer")))
    assert tokenizer.decode([int(wanted[-1].argmax())]) == tokenizer.decode([int(fast[-1].argmax())]) == " Paris"


def test_what_the_bundle_says(file: Path, made: Conversion) -> None:
    about = bundle.read(made.bundle).metadata["language"]
    assert about["stop"] == [2] and about["bos"] == 1
    assert about["template"].startswith("{% for message in messages %}") and about["source"]["license"] == "apache-2.0"
    assert made.report.language["cache_bytes_per_token"] == 23_040
    assert made.report.language["stored"] == {"Q8_0": 1, "F32": 61, "Q4_1": 210}
    assert made.report.bundle_bytes < 1.02 * made.report.source_bytes
    assert matrix_of(read(file).tensors["output_norm.weight"]).shape == (576,)
