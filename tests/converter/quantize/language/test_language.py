"""GPTQ of language models: what is read, perplexities, mixes within a budget, and what is refused."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import lite_runtime
from converter import convert
from converter.errors import ConvertError, QuantizeError
from converter.frontends.decoders import Dense, Settings
from converter.frontends.decoders.rounding import quantized
from converter.frontends.safetensors import load
from converter.quantize import Options
from converter.quantize.accuracy.evaluation import Accuracy
from converter.quantize.calibration.exact import Gram
from converter.quantize.language import mixes
from converter.quantize.language.gptq import _rounded, calibrated
from converter.quantize.language.parts import Parts, dense
from converter.quantize.language.texts import windows
from converter.report import page
from converter.training import Lora, Training
from lite_runtime.graph import Array
from lite_runtime.language import Adapter
from lite_runtime.language.engine import Engine, Part
from tests.converter.frontends.decoders.checkpoints import VOCABULARY, config, folder, tensors
from tests.language.talking import description

SIZES: dict[str, Any] = {"num_hidden_layers": 2, "max_position_embeddings": 64}


@functools.cache
def made(root: Path, case: str = "llama", **changes: Any) -> Path:
    """A model whose logits are steep, so that its own texts are easy to predict."""
    settings = config(case, **SIZES, **changes)
    held = tensors(settings)
    for name in held:
        if name.startswith(("lm_head", "model.embed_tokens")):
            held[name] *= 3
    return folder(root / case.replace(", ", "-"), settings, held)


@functools.cache
def text(path: Path, count: int = 1000) -> Array:
    """Tokens that the model itself draws."""
    engine = Engine(lite_runtime.load(convert(path).bundle), 64)
    rng, tokens = np.random.default_rng(0), list[int]()
    while len(tokens) < count:
        sequence = engine.start()
        (logits,) = engine.run([Part(sequence, [int(rng.integers(VOCABULARY))])])
        while len(sequence) < 64:
            shares = np.exp(logits[-1] - logits[-1].max())
            tokens.append(int(rng.choice(VOCABULARY, p=shares / shares.sum())))
            (logits,) = engine.run([Part(sequence, tokens[-1:])])
        engine.end(sequence)
    return np.array(tokens)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("language"))


def perplexity(data: bytes, rows: Array) -> float:
    """By the engine, of windows of tokens."""
    total = 0.0
    for row in rows:
        engine = Engine(lite_runtime.load(data), 64)
        (logits,) = engine.run([Part(engine.start(), row.tolist(), len(row))])
        wide = logits[:-1].astype(np.float64)
        total -= (wide - np.log(np.exp(wide).sum(-1, keepdims=True)))[np.arange(len(row) - 1), row[1:]].sum()
    return float(np.exp(total / rows[:, 1:].size))


def test_perplexities_are_those_of_the_bundles(model: Path) -> None:
    """Part by part as whole; GPTQ is between rounding without data and the float model."""
    ids = text(model)
    rounded = convert(model, quantize="w4", calibration=ids)
    facts = rounded.report.language["rounding"]
    held = windows(load(model).decoder, ids).held
    assert facts["tokens"] == {"calibration": 11 * 64 + 64, "held": held.size}
    for way, data in {
        "float": convert(model, cache="int8").bundle, "plain": convert(model, quantize="w4").bundle,
        "gptq": rounded.bundle,
    }.items():  # fmt: skip
        assert facts["perplexity"][way] == pytest.approx(perplexity(data, held), rel=1e-5), way
    scores = facts["perplexity"]
    assert scores["float"] < scores["gptq"] < scores["plain"]
    assert facts["mix"]["down"] == {"w4": 2} and facts["mix"]["logits"] == {"w4": 1}
    assert "rounded by GPTQ" in page(rounded.report)


def test_errors_of_outputs_are_smaller() -> None:
    """On inputs that are alike, e' H e falls; blocks are the file's kind."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((400, 8)) @ rng.standard_normal((8, 64)) + 0.1 * rng.standard_normal((400, 64))).astype(
        "f4"
    )
    w = rng.standard_normal((24, 64)).astype(np.float32)
    w[:, 32:] *= np.arange(24)[:, None] > 0  # a block of zeros
    matrix = Dense("w", w.shape, lambda begin, end: w[begin:end])
    gram = Gram(np.abs(x).max(0))
    gram.add(x)
    plain = quantized(matrix, 4)
    (done,) = _rounded([(matrix, plain)], 4, [gram])

    def error(blocks: Any) -> float:
        scales = np.repeat(blocks.scales().astype(np.float32), 32, axis=1)
        near = (blocks.q(0, 24).astype(np.float32) - blocks.zero_point) * scales
        return float(np.square(x @ (near - w).T).sum())

    assert error(done) < 0.5 * error(plain)
    np.testing.assert_array_equal(done.scales(), plain.scales())
    assert done.integers().shape == (24, 2, 16) and not (done.q(0, 1)[:, 32:] != 8).any()
    again = np.concatenate([done.q(0, 7), done.q(7, 24)])
    np.testing.assert_array_equal(again, done.q(0, 24))


@pytest.mark.parametrize("case", ["llama, tied, with biases", "gemma2", "gemma3"])
def test_other_families(case: str, tmp_path: Path) -> None:
    """Tied tables are rounded without data, once; layers with caps, windows and norms behind products."""
    path = made(tmp_path, case)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, VOCABULARY, 600)
    found = convert(path, quantize="w4", calibration=ids)
    held = windows(load(path).decoder, ids).held
    scores = found.report.language["rounding"]["perplexity"]
    assert scores["float"] == pytest.approx(perplexity(convert(path, cache="int8").bundle, held), rel=1e-5)
    assert scores["gptq"] == pytest.approx(perplexity(found.bundle, held), rel=1e-5)
    assert "logits" not in found.report.language["rounding"]["mix"]


def test_results_do_not_depend_on_threads(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, one = text(model), convert(model, quantize="w4", calibration=text(model)).bundle
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    assert convert(model, quantize="w4", calibration=ids).bundle == one


def test_products_that_are_kept(model: Path) -> None:
    ids = text(model)
    found = convert(
        model, quantize=Options(mode="w4", keep_float=("layer.0.*",)), keep_w8=["down", "logits"], calibration=ids
    )
    mix = found.report.language["rounding"]["mix"]
    assert mix["down"] == {"float": 1, "w8": 1} and mix["logits"] == {"w8": 1} and mix["up"] == {"float": 1, "w4": 1}
    after = found.report.ops_after
    assert (after["MatMul"], after["MatMulNBits"], after["GatedMatMulNBits"]) == (7, 6, 1)
    plain = convert(model, quantize="w4", keep_w8=["down", "logits"]).report
    assert plain.ops_after["MatMulNBits"] == 11 and plain.bundle_bytes < found.report.bundle_bytes


def test_a_budget_is_met_with_the_products_that_matter(model: Path) -> None:
    """The last layer's `down` is worth more than others: its outliers are ten times as large."""
    ids = text(model)
    scores = convert(model, quantize="w4", calibration=ids).report.language["rounding"]["perplexity"]
    every = convert(model, quantize="w8", calibration=ids)
    least, most = (every.report.language["rounding"]["perplexity"]["gptq"], scores["gptq"])
    limit = max(0.4 * (most - scores["float"]), 1.2 * (least - scores["float"]))
    found = convert(model, quantize="w4", calibration=ids, accuracy=Accuracy(f"{limit:.6f}", "perplexity"))
    facts = found.report.language["rounding"]
    mix = facts["perplexity"]["mix"]
    assert mix - facts["perplexity"]["float"] <= limit + 1e-6
    assert mix == pytest.approx(perplexity(found.bundle, windows(load(model).decoder, ids).held), rel=1e-5)
    counts = [sum(kinds.get(kind, 0) for kinds in facts["mix"].values()) for kind in ("w4", "w8")]
    assert min(counts) > 0 and sum(counts) == 16
    assert found.report.bundle_bytes < every.report.bundle_bytes
    order = [unit["gain"] / unit["bytes"] for unit in facts["ranking"]]
    assert order == sorted(order, reverse=True) and len(order) == 16
    assert facts["budget"]["trials"] > 16 and "What 8 bits win" in page(found.report)


def test_units_are_measured_from_where_they_begin(model: Path) -> None:
    """What a unit wins is what the whole model says."""
    decoder, ids = load(model).decoder, text(model)
    held, wanted = windows(decoder, ids), Settings("w4")
    found, parts = calibrated(decoder, wanted, held), Parts(decoder, wanted, held.length)
    part = held.calibration[:: -(-len(held.calibration) // 4)]
    base = parts.measured(part, mixes._of(found.made))
    for unit in mixes._ranked(parts, held, found, None)[::3]:
        assert unit.gain == base - parts.measured(part, mixes._of(mixes._with(found, [unit]))), unit.name


def test_budgets_that_hold_at_once_or_never(model: Path) -> None:
    ids = text(model)
    found = convert(model, quantize="w4", calibration=ids, accuracy=Accuracy("900%", data=ids[-100:]))
    facts = found.report.language["rounding"]
    assert facts["budget"]["trials"] == 0 and facts["perplexity"]["mix"] == facts["perplexity"]["gptq"]
    assert facts["tokens"]["held"] == 64
    with pytest.raises(QuantizeError, match="cannot be met: perplexity may be 0 above"):
        convert(model, quantize="w4", calibration=ids, accuracy=Accuracy("0"))


def test_windows_begin_as_texts_do(model: Path) -> None:
    """With bos, where the model's texts have it, and spread over the text."""
    tokenizer = description()
    begun = tokenizer._replace(template={**tokenizer.template, "single": (1, *tokenizer.template["single"])})
    decoder = replace(load(model).decoder, tokenizer=begun, bos=1)
    found = windows(decoder, np.arange(63 * 40) % VOCABULARY)
    assert found.calibration.shape == (30, 64) and found.held.shape == (10, 64)
    assert (found.calibration[:, 0] == 1).all() and (found.held[:, 0] == 1).all()
    np.testing.assert_array_equal(found.calibration[1, 1:], np.arange(63, 126))
    assert found.held[0, 1] == 30 * 63 % VOCABULARY
    assert windows(decoder, np.zeros(10**5, int)).calibration.shape == (32, 64)


@pytest.mark.parametrize(("cache", "far"), [("float32", 1e-4), ("int8", 0.02)])
def test_adapters_learn_beside_what_was_rounded(cache: str, far: float, model: Path) -> None:
    """All graphs of a bundle have the same matrices; without an adapter it is the bundle that does not learn."""
    ids = text(model)
    settings: dict[str, Any] = {"quantize": "w4", "calibration": ids, "activations": "float32", "cache": cache}
    plain = convert(model, **settings)
    learned = convert(model, **settings, trainable=Training(adapters=Lora(2, targets=("query", "down"))))
    assert learned.report.language == plain.report.language and learned.report.language["rounding"]
    row = ids[:40]
    batch = {"input_ids": row[None, :-1].astype(np.int32), "labels": row[None, 1:].astype(np.int64)}
    first, second = (lite_runtime.load(made.bundle) for made in (plain, learned))
    before, same = (_logits(Engine(one, 64), row[:-1]) for one in (first, second))
    np.testing.assert_array_equal(before, same)
    assert second.run(batch, "evaluate")["loss"] == pytest.approx(_loss(before, row[1:]), rel=far)
    for _ in range(5):
        second.run(batch, "train_step")
    numbers = {name: value for name, value in second.state_dict().items() if ".lora_" in name and "/" not in name}
    engine = Engine(second, 64)
    after = _logits(engine, row[:-1], engine.attach(Adapter(numbers, second.bundle.digest)))
    assert second.run(batch, "evaluate")["loss"] == pytest.approx(_loss(after, row[1:]), rel=far)
    assert _loss(after, row[1:]) < 0.98 * _loss(before, row[1:])


def _logits(engine: Engine, tokens: Array, slot: int = -1) -> Array:
    (logits,) = engine.run([Part(engine.start(slot), tokens.tolist(), len(tokens))])
    return logits.astype(np.float64)


def _loss(logits: Array, labels: Array) -> float:
    chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -float(chances[np.arange(len(labels)), labels].mean())


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a short text": ({"calibration": np.zeros(20, int)}, "at least 32 tokens, got 20"),
    "no integers": ({"calibration": np.zeros(200)}, "token ids in one row, got float64"),
    "rows of tokens": ({"calibration": np.zeros((20, 20), int)}, r"got int64 of shape \[20, 20\]"),
    "tokens outside": ({"calibration": np.full(200, 199)}, "from 0 to 198"),
    "no tokenizer": ({"calibration": "text.txt"}, "no tokenizer for a text; give token ids"),
    "nothing to round": ({"calibration": np.zeros(200, int), "quantize": "none"}, "expected quantize 'w8' or 'w4'"),
    "a budget alone": ({"accuracy": Accuracy("1%")}, "expected a text to calibrate on"),
    "another metric": (
        {"calibration": np.zeros(200, int), "accuracy": Accuracy("1%", "top1")}, "expected perplexity .*got 'top1'",
    ),
    "an unknown product": ({"keep_w8": ["dwon"]}, r"keep_w8: expected a glob of products .*gate.*got 'dwon'"),
    "nothing to keep": ({"keep_w8": ["down"], "quantize": "w8"}, "keep_w8: expected quantize 'w4'"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, model: Path) -> None:
    options, match = REFUSED[name]
    with pytest.raises(ConvertError, match=match):
        convert(model, **{"quantize": "w4", **options})


def test_blocks_are_not_rounded_again(tmp_path: Path) -> None:
    from tests.converter.frontends.decoders.checkpoints import gguf_file

    settings = config("llama", **SIZES)
    source = gguf_file(tmp_path / "tiny.gguf", settings, tensors(settings), "Q8_0")
    with pytest.raises(QuantizeError, match=r"expected matrices of floats, got .*Q8_0"):
        convert(source, quantize="w4", calibration=np.zeros(200, int))


def test_the_command(tmp_path: Path) -> None:
    """A float GGUF file with a tokenizer, and a text."""
    from tests.converter.frontends.decoders.checkpoints import gguf_file

    settings = config("llama", **SIZES)
    source, out, page_ = gguf_file(tmp_path / "tiny.gguf", settings, tensors(settings), "F16"), tmp_path / "o", "r.json"
    with_tokenizer(source)
    (tmp_path / "text.txt").write_text("the cat sat on the mat. " * 60, encoding="utf-8")
    arguments = [
        "convert", source, "-o", out, "--quantize", "w4", "--calibration", tmp_path / "text.txt", "--keep-w8", "down",
        "--report", tmp_path / page_,
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "edge.cli", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "perplexity" in done.stdout and "w4 14, w8 2" in done.stdout
    assert json.loads((tmp_path / page_).read_text())["language"]["rounding"]["mix"]["down"] == {"w8": 2}
    (tmp_path / "text.txt").write_bytes(b"\xff\xfe" * 100)
    done = subprocess.run([sys.executable, "-m", "edge.cli", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode and "in UTF-8, got byte 255" in done.stderr


def with_tokenizer(path: Path) -> None:
    """Add a tokenizer of single bytes to a file."""
    reader = gguf.GGUFReader(path)
    out = gguf.GGUFWriter(path.with_suffix(".new"), "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            out.add_key_value(name, field.contents(), field.types[0])
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    letters = [*map(chr, range(33, 127)), "Ġ", "th", "at"]
    out.add_token_list([*letters, *(f"<unused {i}>" for i in range(VOCABULARY - len(letters)))])
    out.add_token_merges(["t h", "a t"])
    for tensor in reader.tensors:
        out.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    path.with_suffix(".new").replace(path)


def test_parts_know_their_products(model: Path) -> None:
    parts = Parts(load(model).decoder, Settings(), 32)
    assert set(parts.products()) == {"embedding", "logits"}
    assert {name.rpartition(".")[2] for name in parts.products(1)} == {
        "query", "key", "value", "result", "gate", "up", "down",
    }  # fmt: skip
    found = calibrated(load(model).decoder, Settings(), windows(load(model).decoder, text(model)))
    assert len(set(found.perplexity.values())) == 1, "nothing is rounded"
    assert dense("x", found.products["logits"]) is found.products["logits"]
