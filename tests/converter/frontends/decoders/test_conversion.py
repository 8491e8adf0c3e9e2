"""Language models from file to bundle: types of weights, options, metadata, commands, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter import ConvertError, convert
from converter.frontends.gguf import load
from converter.frontends.gguf.blocks import TYPES
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.language import LanguageModel
from lite_runtime.reference.blocked import Blocks, weights
from tests.converter.frontends.decoders import gguf_bytes
from tests.converter.frontends.decoders.by_transformers import tokens
from tests.converter.frontends.decoders.checkpoints import BFLOAT16, config, folder, gguf_file, tensors
from tests.converter.frontends.decoders.gguf_bytes import Stored, array, scalar
from tests.converter.frontends.decoders.plain import logits
from tests.converter.frontends.decoders.running import logits_of
from tests.converter.frontends.decoders.test_gguf_reader import random_blocks

WIDTH, VOCABULARY, HEADS = 256, 90, 4
NUMBERS = {"layers": 2, "heads": HEADS, "kv_heads": 2, "epsilon": 1e-5, "base": 10_000.0}


def metadata(**changes: bytes) -> dict[str, bytes]:
    """A file's values; `changes` by the last part of the key."""
    made = {
        "general.architecture": scalar(8, "llama"),
        "llama.block_count": scalar(4, 2),
        "llama.context_length": scalar(4, 64),
        "llama.embedding_length": scalar(4, WIDTH),
        "llama.feed_forward_length": scalar(4, 2 * WIDTH),
        "llama.attention.head_count": scalar(4, HEADS),
        "llama.attention.head_count_kv": scalar(4, 2),
        "llama.attention.layer_norm_rms_epsilon": scalar(6, 1e-5),
    }
    for name, value in changes.items():
        made[next((key for key in made if key.endswith(f".{name}")), f"llama.{name}")] = value
    return made


def stored(kinds: list[int], seed: int = 0) -> list[Stored]:
    """Tensors of a model of two layers; its matrices have these types, one after the other."""
    rng, found = np.random.default_rng(seed), list[Stored]()
    wide = {"q": WIDTH, "k": WIDTH // 2, "v": WIDTH // 2, "output": WIDTH}
    shapes = {f"blk.{i}.attn_{name}": (n, WIDTH) for i in range(2) for name, n in wide.items()}
    for i in range(2):
        shapes |= {f"blk.{i}.ffn_gate": (2 * WIDTH, WIDTH), f"blk.{i}.ffn_up": (2 * WIDTH, WIDTH)}
        shapes[f"blk.{i}.ffn_down"] = (WIDTH, 2 * WIDTH)
    shapes["token_embd"] = (VOCABULARY, WIDTH)
    for i, (name, (n, k)) in enumerate(shapes.items()):
        number = kinds[i % len(kinds)]
        raw = random_blocks(number, (n, k), rng)
        scaled(raw, number, k)
        found.append(Stored(f"{name}.weight", (k, n), number, raw.tobytes()))
    norms = [f"blk.{i}.{name}_norm" for i in range(2) for name in ("attn", "ffn")]
    found += [Stored(f"{name}.weight", (WIDTH,), 0, rng.uniform(0.5, 1.5, WIDTH).astype("<f4").tobytes())
              for name in (*norms, "output_norm")]  # fmt: skip
    return found


def scaled(raw: Array, number: int, k: int) -> None:
    """Make random bytes weights of about unit gain."""
    kind = TYPES[number]
    if kind.blocks is None:
        rng, count = np.random.default_rng(len(raw)), raw.size // kind.size
        dtype = {0: "<f4", 1: "<f2", 30: BFLOAT16}[number]
        raw[:] = (rng.standard_normal(count) / k**0.5).astype(dtype).view(np.uint8).reshape(raw.shape)
        return
    rows = raw.reshape(-1, kind.size)
    for at in {14: (208,)}.get(number, (0, 2) if kind.blocks.offsets else (0,)):
        middle = {2: 8, 3: 8, 6: 16, 7: 16, 8: 128, 12: 8 * 32, 13: 16 * 32, 14: 32 * 64}[number]
        factor = (-middle if at == 2 and number in (3, 7) else 1) / middle / k**0.5
        if at == 2 and number in (12, 13):
            factor = 1 / 32 / k**0.5
        rows[:, at : at + 2] = np.full(len(rows), factor, "<f2").view(np.uint8).reshape(-1, 2)


def matrices(data: bytes) -> dict[str, Array]:
    """Every tensor of a file in float32, by the reference of blocks."""
    from converter.frontends.gguf import matrix_of
    from converter.frontends.gguf.reader import read

    found = {}
    for name, tensor in read(data).tensors.items():
        held: Any = matrix_of(tensor)
        if tensor.type.blocks is None:
            found[name] = held.array()
            continue
        offsets = held.offsets() if held.offsets is not None else None
        parts = Blocks(held.integers(), held.scales(), offsets)
        found[name] = weights(parts, held.shape[0], held.bits, held.zero_point, "")
    return found


MIXES = {"of 4 bits": [2, 3, 12], "of 8 bits": [6, 7, 8, 13], "dense": [0, 1, 30], "all": list(TYPES), "K": [12, 14]}
TEXT = tokens()[:20]
TEXT = [t % VOCABULARY for t in TEXT]


@pytest.mark.parametrize("mix", MIXES)
def test_types_of_weights(mix: str) -> None:
    """Float activations, against plain NumPy on the weights that the file stands for."""
    data = gguf_bytes.file(metadata(), stored(MIXES[mix]))
    held = matrices(data)
    wanted = logits(TEXT, held.__getitem__, NUMBERS)
    made = convert(data, activations="float32")
    assert made.report.reference == 0, made.report.reference_ops
    for backend in ("auto", "reference"):
        found = logits_of(made.bundle, TEXT, backend, 13)
        assert np.abs(found - wanted).max() < 1e-3 * np.ptp(wanted), backend
    close = logits_of(convert(data).bundle, TEXT, first=13)
    assert np.sqrt(((close - wanted) ** 2).mean()) < 0.1 * wanted.std()


def test_blocks_are_stored_as_they_are() -> None:
    """The bundle's tables stand for the file's numbers, bit for bit; the tied table is stored once."""
    data = gguf_bytes.file(metadata(), stored([3, 12, 14, 8]))
    graph = bundle.read(convert(data).bundle).signatures["predict"]
    held, seen = matrices(data), set[str]()
    for node in graph.nodes:
        if node.op not in ("MatMulNBits", "GatherBlockQuantized"):
            continue
        q, scales, offsets = (node.inputs[i] if i < len(node.inputs) else "" for i in
                              ((1, 2, 3) if node.op == "MatMulNBits" else (0, 2, 3)))  # fmt: skip
        parts = Blocks(graph.constants[q], graph.constants[scales], graph.constants[offsets] if offsets else None)
        a = node.attrs
        assert a["layout"] == "panels"
        found = weights(parts, int(a["N"]), int(a["bits"]), int(a["zero_point"]), "panels")  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, held[q.removesuffix(".q")])
        seen.add(q)
    assert len(seen) == sum(op in ("MatMulNBits", "GatherBlockQuantized") for op in (n.op for n in graph.nodes)) - 1


def test_quantised_at_conversion(tmp_path: Path) -> None:
    settings = config("llama", num_hidden_layers=2)
    path = folder(tmp_path / "m", settings, tensors(settings))
    dense, eight, four = (convert(path, quantize=mode, activations="float32") for mode in ("none", "w8", "w4"))  # type: ignore[arg-type]
    assert dense.report.ops_after["MatMul"] == eight.report.ops_after["MatMulNBits"] == 15
    wanted = logits_of(dense.bundle, tokens())
    errors = [np.sqrt(((logits_of(m.bundle, tokens()) - wanted) ** 2).mean()) / wanted.std() for m in (eight, four)]
    assert errors[0] < 0.03 and errors[0] * 4 < errors[1] < 0.6
    assert four.report.bundle_bytes < eight.report.bundle_bytes < 0.4 * dense.report.bundle_bytes


@pytest.mark.parametrize(
    ("cache", "bound", "size"), [("int8", 0.02, 2 * 2 * 2 * 18), ("float32", 1e-4, 2 * 2 * 2 * 64)]
)
def test_caches(cache: str, bound: float, size: int, tmp_path: Path) -> None:
    """Of other types than float16, against float32 throughout."""
    settings = config("llama", num_hidden_layers=2)
    path = folder(tmp_path / "m", settings, tensors(settings))
    made = convert(path, cache=cache)  # type: ignore[arg-type]
    wanted = logits_of(convert(path, cache="float32").bundle, tokens(), "reference")
    assert np.abs(logits_of(made.bundle, tokens()) - wanted).mean() < bound * np.ptp(wanted)
    assert made.report.language["cache_bytes_per_token"] == size and made.report.language["cache"] == cache
    assert bundle.read(made.bundle).metadata["language"]["cache"] == cache


def test_other_sizes_stay_dense(tmp_path: Path) -> None:
    """Rows that are no blocks of 32."""
    sizes = {"hidden_size": 40, "intermediate_size": 50, "num_attention_heads": 2, "head_dim": 10}
    settings = config("llama", num_hidden_layers=1, **sizes)
    path = folder(tmp_path / "m", settings, tensors(settings))
    made = [convert(path, quantize=mode, cache="float16") for mode in ("none", "w8")]  # type: ignore[arg-type]
    np.testing.assert_array_equal(*(logits_of(m.bundle, tokens()) for m in made))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "to ONNX": ({"to": "onnx"}, "to: expected none for a language model"),
    "int8": ({"quantize": "int8", "calibration": {}}, "quantize: expected one of none, w8, w4"),
    "trainable": ({"trainable": "*"}, "trainable"),
    "input shapes": ({"input_shapes": {"input_ids": (3,)}}, "input_shapes"),
    "a longer context": ({"context": 65}, "at most the model's 64 tokens, got 65"),
    "no context": ({"context": 0}, "context: expected a number"),
    "activations": ({"activations": "int4"}, "activations: expected one of int8, float32"),
    "integers": ({"integers": "exact"}, "integers"),
    "caches": ({"cache": "int4"}, "cache: expected one of float16, float32, int8"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_apply(name: str, tmp_path: Path) -> None:
    options, match = REFUSED[name]
    with pytest.raises(ConvertError, match=match):
        convert(gguf_bytes.file(metadata(), stored([8])), output=tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def test_options_of_language_models_on_others(tmp_path: Path) -> None:
    from tests.converter.test_random_graphs import network

    with pytest.raises(ConvertError, match="activations: only language models"):
        convert(network(0), activations="int8")


FILES: dict[str, tuple[dict[str, bytes], str]] = {
    "an unknown family": ({"architecture": scalar(8, "bert")}, "of llama, qwen2, .*got 'bert'"),
    "no family": ({"architecture": scalar(4, 1)}, "general.architecture.: expected a text"),
    "no layers": ({"block_count": scalar(4, 0)}, "block_count.: expected 1 to 1024, got 0"),
    "many layers": ({"block_count": scalar(10, 1 << 60)}, "block_count.: expected 1 to 1024"),
    "missing layers": ({"block_count": scalar(4, 3)}, "expected a tensor 'blk.2.attn_norm.weight', got none"),
    "fewer layers": ({"block_count": scalar(4, 1)}, "no other tensors.*blk.1"),
    "layers that differ": ({"head_count": gguf_bytes.array(4, [4, 2])}, "one whole number for all layers"),
    "another width": ({"embedding_length": scalar(4, 128)}, "expected shape"),
    "a width of text": ({"embedding_length": scalar(8, "x")}, "embedding_length.: expected a whole number, got 'x'"),
    "experts": ({"expert_count": scalar(4, 8)}, "mixtures of experts"),
    "yarn": ({"rope.scaling.type": scalar(8, "yarn")}, "none or linear, got 'yarn'"),
    "an odd rotation": ({"rope.dimension_count": scalar(4, 3)}, "even number of rotated features"),
    "infinite base": ({"rope.freq_base": scalar(6, float("inf"))}, "number above 0"),
    "a huge context": ({"context_length": scalar(4, 1 << 27)}, "out of proportion"),
    "values of another size": ({"attention.value_length": scalar(4, 32)}, "same size per head"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_refused(name: str) -> None:
    changes, match = FILES[name]
    with pytest.raises(ConvertError, match=match):
        convert(gguf_bytes.file(metadata(**changes), stored([8])))


def test_one_part_of_several() -> None:
    with pytest.raises(ConvertError, match="llama-gguf-split --merge"):
        convert(gguf_bytes.file(metadata() | {"split.count": scalar(2, 3)}, stored([8])))


def test_metadata_and_commands(tmp_path: Path) -> None:
    """`msedge convert` and `msedge inspect`, as users run them."""
    settings = config("gemma2", num_hidden_layers=3)
    source = gguf_file(tmp_path / "tiny.gguf", settings, tensors(settings), "Q8_0")
    out, page = tmp_path / "out.mslite", tmp_path / "out.html"

    def run(*arguments: object) -> str:
        done = subprocess.run([sys.executable, "-m", "edge.cli", *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("convert", source, "-o", out, "--cache", "float16")
    assert "768 B for each token" in run("inspect", out)
    said = run("convert", source, "-o", out, "--context", 100, "--report", page)
    assert "Q8_0 22" in said and "408 B of cache for each" in said and "next: msedge verify" in said
    assert "tiny.gguf" in page.read_text()
    held = bundle.read(out)
    about = held.metadata["language"]
    assert about == {
        "architecture": "gemma2", "name": "tiny", "context": 100, "vocabulary": 199, "width": 64, "layers": 3,
        "heads": 4, "kv_heads": 2, "head_size": 32, "cache": "int8", "window": 9, "activations": "int8",
        "stop": [], "bos": None, "template": None, "source": {"file": "tiny.gguf"},
    }  # fmt: skip
    shown = run("inspect", out)
    assert "architecture gemma2, layers 3" in shown and "408 B for each token" in shown
    assert json.loads(run("inspect", out, "--json"))["metadata"]["language"]["context"] == 100
    assert run("convert", source, "-o", out, "--json")


def written(model: str, **flags: bool) -> dict[str, bytes]:
    """A tokenizer in GGUF's metadata: three letters, what two of them make, bos and eos."""
    names = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "\u2581", *(f"[{i}]" for i in range(82))]
    return {
        "tokenizer.ggml.model": scalar(8, model),
        "tokenizer.ggml.pre": scalar(8, "smollm"),
        "tokenizer.ggml.tokens": array(8, names),
        "tokenizer.ggml.token_type": array(5, [2, 3, 3, *[1] * 87]),
        "tokenizer.ggml.scores": array(6, [0.0] * 90),
        "tokenizer.ggml.merges": array(8, ["a b"]),
        "tokenizer.ggml.bos_token_id": scalar(4, 1),
        "tokenizer.ggml.eos_token_id": scalar(4, 2),
        "tokenizer.chat_template": scalar(8, "{{ bos_token }}{{ messages[0].content }}"),
        **{f"tokenizer.ggml.{name}": scalar(7, flag) for name, flag in flags.items()},
    }


@pytest.mark.parametrize(
    ("model", "flags", "begins"),
    [
        ("llama", {"add_bos_token": True}, [1]), ("llama", {}, [1]), ("llama", {"add_bos_token": False}, []),
        ("gpt2", {"add_bos_token": True}, [1]), ("gpt2", {}, []), ("gpt2", {"add_bos_token": False}, []),
    ],
)  # fmt: skip
def test_prompts_begin_with_bos_where_the_file_says_so(model: str, flags: dict[str, bool], begins: list[int]) -> None:
    """As llama.cpp adds it: by the file's flag, and without one for SentencePiece's models. Chats have that of their
    template, which the bundle holds once."""
    made = convert(gguf_bytes.file({**metadata(), **written(model, **flags)}, stored([8]))).bundle
    words = LanguageModel.load(made)
    assert words.tokens("ab")[: len(begins)] == begins and words.tokens("ab").count(1) == len(begins)
    assert words.tokens(messages=[{"role": "user", "content": "ab"}]).count(1) == 1
    about = bundle.read(made).metadata["language"]
    assert about["template"].startswith("{{ bos_token }}") and not {"add_bos", "page"} & set(about)
    assert words.tokenizer is not None and words.tokenizer.chat_template == ""
    pieces = list(words.generate("ab", max_tokens=3))
    assert pieces[-1].statistics is not None and pieces[-1].statistics.prompt_tokens == len(words.tokens("ab"))


def test_texts_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    said = {"general.name": scalar(8, "\x1b[31mred"), "tokenizer.chat_template": scalar(8, "a\x1b]0;b\x07\n\u202e")}
    out = tmp_path / "out"
    convert(gguf_bytes.file(metadata() | said, stored([8])), output=out)
    command = [sys.executable, "-m", "edge.cli", "inspect", out]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "\\x1b[31mred" in done.stdout
    assert not any(c in done.stdout for c in "\x1b\x07\u202e")


def test_memory_is_bounded(tmp_path: Path) -> None:
    """A conversion holds the model three times (tables, section, file), and maps the source: measured between two
    sizes."""
    program = (
        "import resource, sys\nfrom converter import convert\nconvert(sys.argv[1], output=sys.argv[2])\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    peaks, sizes = [], []
    for layers in (1, 4):
        made = config("llama", num_hidden_layers=layers, hidden_size=1024, intermediate_size=3072)
        path = gguf_file(tmp_path / f"{layers}.gguf", made, tensors(made), "Q8_0")
        done = subprocess.run(
            [sys.executable, "-c", program, path, tmp_path / "out"], capture_output=True, text=True, check=True
        )
        peaks.append(int(done.stdout) * 1024)
        sizes.append(path.stat().st_size)
    assert (peaks[1] - peaks[0]) < 4.8 * (sizes[1] - sizes[0])


def test_equal_files_give_equal_bundles(tmp_path: Path) -> None:
    data = gguf_bytes.file(metadata(), stored([3]))
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    first, again = convert(path).bundle, convert(path).bundle
    assert first == again and load(path).metadata["language"]["source"]["file"] == "x.gguf"
