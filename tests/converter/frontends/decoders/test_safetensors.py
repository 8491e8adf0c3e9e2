"""Folders of safetensors: the file's extents, several files, types, rounding to blocks, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from converter import ConvertError, convert
from converter.frontends.decoders import Dense
from converter.frontends.decoders.rounding import BLOCK, quantized
from converter.frontends.safetensors.reader import read
from lite_runtime.graph import Array
from lite_runtime.reference.blocked import Blocks, weights
from tests.converter.frontends.decoders.by_transformers import tokens
from tests.converter.frontends.decoders.checkpoints import BFLOAT16, config, folder, safetensors, tensors
from tests.converter.frontends.decoders.running import logits_of


def header(text: bytes, body: bytes = b"", size: int | None = None) -> bytes:
    return (len(text) if size is None else size).to_bytes(8, "little") + text + body


def one(**changes: Any) -> bytes:
    row = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}
    return header(json.dumps({"a": row}).encode(), bytes(8))


TWO = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[4],"data_offsets":[%s]}}'
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "expected a header"),
    "a length past the end": (header(b"{}", size=1 << 60), "expected a header"),
    "no JSON": (header(b"{]"), "expected a header of JSON"),
    "not UTF-8": (header(b'{"\xff":1}'), "expected a header of JSON"),
    "a list": (header(b"[]"), "expected a JSON object"),
    "deep JSON": (header(b"[" * 200_000), "expected a header of JSON"),
    "a name twice": (header(b'{"a":1,"a":2}'), "a name twice"),
    "a row that is a number": (header(b'{"a":1}'), "expected dtype, shape"),
    "an unknown type": (one(dtype="F4"), "expected a type of F64"),
    "a type that is a list": (one(dtype=["F32"]), "expected a type of F64"),
    "sizes below 0": (one(shape=[-2]), "a shape of sizes"),
    "a size that is true": (one(shape=[True]), "a shape of sizes"),
    "sizes that overflow": (one(shape=[1 << 40, 1 << 40]), "bytes, got offsets"),
    "too many bytes": (one(shape=[3]), "expected 12 bytes"),
    "offsets in reverse": (one(data_offsets=[8, 0]), "expected 8 bytes"),
    "one offset": (one(data_offsets=[8]), "two offsets"),
    "past the end": (one(shape=[4], data_offsets=[0, 16]), "at most to 8"),
    "a gap before it": (one(shape=[1], data_offsets=[4, 8]), "bytes from 0"),
    "bytes left over": (one(shape=[1], data_offsets=[0, 4]), "data up to byte 8"),
    "overlapping": (header((TWO % "4,8").encode(), bytes(8)), "bytes from 8"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str) -> None:
    data, match = HOSTILE[name]
    with pytest.raises(ConvertError, match=match):
        read(data)


def test_sound_files(tmp_path: Path) -> None:
    held: dict[str, Array] = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones((), np.float16)}
    held["c"] = np.zeros((0, 4), np.int64)
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors(held))
    found = read(path)
    assert found.keys() == held.keys()
    for name, array in held.items():
        np.testing.assert_array_equal(found[name].array, array)


def test_types_and_several_files(tmp_path: Path) -> None:
    """The same numbers in other types and in two files give the same bundle, byte for byte, but for its origin."""
    c = config("llama", num_hidden_layers=2)
    held = {name: a.astype(BFLOAT16).astype(np.float32) for name, a in tensors(c).items()}
    types = {"a": np.float32, "b": BFLOAT16}
    made = [convert(folder(tmp_path / name / "m", c, held, kind), quantize="w8") for name, kind in types.items()]
    split = folder(tmp_path / "c" / "m", c, {})
    names = sorted(held)
    (split / "model.safetensors").unlink()
    parts = {"one.safetensors": names[::2], "two.safetensors": names[1::2]}
    for file, inside in parts.items():
        (split / file).write_bytes(safetensors({name: held[name] for name in inside}))
    index = {"weight_map": {name: file for file, inside in parts.items() for name in inside}}
    (split / "model.safetensors.index.json").write_text(json.dumps(index))
    made.append(convert(split, quantize="w8"))
    one, *others = [logits_of(m.bundle, tokens()) for m in made]
    for other in others:
        np.testing.assert_array_equal(one, other)
    assert [set(m.report.language["stored"]) for m in made] == [{"F32"}, {"BF16"}, {"F32"}]


def test_what_a_folder_lacks(tmp_path: Path) -> None:
    c = config("llama", num_hidden_layers=1)
    held = tensors(c)

    def refused(match: str, change: Any, **changes: Any) -> None:
        path = folder(tmp_path / "m", {**c, **changes}, held)
        change(path)
        with pytest.raises(ConvertError, match=match):
            convert(path)
        for file in path.iterdir():
            file.unlink()

    def write(name: str, text: str) -> Any:
        return lambda path: (path / name).write_text(text)

    def weights(**changed: Any) -> Any:
        left = {k: v for k, v in {**held, **changed}.items() if v is not None}
        return lambda path: (path / "model.safetensors").write_bytes(safetensors(left))

    def nothing(path: Path) -> None: ...

    refused(
        "without saved_model.pb, modules.json, config.json or model.onnx", lambda path: (path / "config.json").unlink()
    )
    refused("expected JSON", write("config.json", "{"))
    refused("expected one .safetensors file", lambda path: (path / "model.safetensors").unlink())
    refused("expected a tensor 'model.norm.weight', got none", weights(**{"model.norm.weight": None}))
    refused("no other tensors.*extra", weights(extra=held["model.norm.weight"]))
    refused("expected one of F32, F16, BF16, got I64", weights(**{"model.norm.weight": np.zeros(64, np.int64)}))
    refused("expected finite numbers", weights(**{"model.norm.weight": np.full(64, np.nan, np.float32)}))
    refused("expected shape .32, 64., got", nothing, num_attention_heads=4, head_dim=8)
    refused("hidden_size: expected a whole number", nothing, hidden_size="64")
    refused("num_hidden_layers: expected a whole number from 1 to 1024", nothing, num_hidden_layers=1 << 40)
    refused("default, linear, llama3, got 'yarn'", nothing, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    refused("expected the activation silu", nothing, hidden_act="relu")
    refused("quantization_config", nothing, quantization_config={"bits": 4})
    refused("share keys evenly", nothing, num_key_value_heads=3)
    refused("out of proportion", nothing, max_position_embeddings=1 << 27)
    refused("eos_token_id", nothing, eos_token_id=[1, 999])
    with pytest.raises(ConvertError, match=r"weights, no graph.*folder"):
        convert_file(tmp_path, held)


def convert_file(path: Path, held: dict[str, Array]) -> None:
    file = path / "x.safetensors"
    file.write_bytes(safetensors(held))
    convert(file)


def test_a_chat_template_and_the_ends_of_texts(tmp_path: Path) -> None:
    from lite_runtime import bundle

    c = config("llama", num_hidden_layers=1, eos_token_id=[2, 5])
    path = folder(tmp_path / "tiny", c, tensors(c))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ text }}", "add_bos_token": True}))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 2]}))
    said = bundle.read(convert(path, context=100).bundle).metadata["language"]
    assert said["stop"] == (7, 2, 5) or list(said["stop"]) == [7, 2, 5]
    assert said["template"] == "{{ text }}" and said["bos"] == 1
    assert said["context"] == 100 and said["source"]["file"] == "tiny"
    (path / "chat_template.jinja").write_text("another")
    assert bundle.read(convert(path).bundle).metadata["language"]["template"] == "another"


# -- rounding to blocks -----------------------------------------------------------------------------------------------


def rounded(x: Array, bits: int) -> Array:
    made = quantized(Dense("x", x.shape, lambda begin, end: x[begin:end]), bits)
    return weights(Blocks(made.integers(), made.scales()), len(x), bits, made.zero_point, "")


def plain(x: Array, bits: int) -> Array:
    """Each block's largest magnitude at the end of the range."""
    blocks = x.reshape(len(x), -1, BLOCK)
    scale = (np.abs(blocks).max(-1, keepdims=True) / (2 ** (bits - 1) - 1)).astype(np.float16).astype(np.float32)
    q = np.rint(np.divide(blocks, scale, out=np.zeros_like(blocks), where=scale > 0))
    return (np.clip(q, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1) * scale).reshape(x.shape)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("seed", range(4))
def test_rounding_is_better_than_the_plain_rule(bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.standard_t(4, (int(rng.integers(1, 70)), 32 * int(rng.integers(1, 9)))) * 0.02).astype(np.float32)
    errors = [float(((found(x, bits) - x) ** 2).mean()) for found in (rounded, plain)]
    assert errors[0] <= errors[1] * (0.85 if bits == 4 else 1.0)


@settings(max_examples=60, deadline=None)
@given(st_numpy.arrays(np.float32, (3, 64), elements=st.floats(-60_000, 60_000, width=32)), st.sampled_from([4, 8]))
def test_no_block_is_worse_than_by_the_plain_rule(x: Array, bits: int) -> None:
    errors = [((found(x, bits) - x).astype(np.float64) ** 2).reshape(3, 2, BLOCK).sum(-1) for found in (rounded, plain)]
    assert (errors[0] <= errors[1] * (1 + 1e-4)).all()


def test_zeros_and_equal_values_are_exact() -> None:
    x = np.concatenate([np.zeros((2, 32)), np.full((2, 32), 0.5), np.full((2, 32), -3.0)]).astype(np.float32)
    for bits in (4, 8):
        found = rounded(x, bits)
        np.testing.assert_allclose(found, x, rtol=2e-3 if bits == 8 else 1e-2)
        np.testing.assert_array_equal(found[:2], 0)
