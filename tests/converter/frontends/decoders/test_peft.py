"""Adapters of peft beside a bundle give what the model gives whose weights contain them; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter import ConvertError, convert
from converter.peft import CONFIG, WEIGHTS, from_peft, to_peft
from converter.training import Lora, Training
from lite_runtime import bundle
from lite_runtime.errors import InputError
from lite_runtime.graph import Array
from lite_runtime.language.adapters import Adapter
from lite_runtime.language.engine import Engine, Part
from tests.converter.frontends.decoders.by_transformers import tokens
from tests.converter.frontends.decoders.checkpoints import config, folder, gguf_file, safetensors, tensors
from tests.converter.frontends.decoders.running import logits_of
from tests.edge.test_cli import as_json, msedge

SETTINGS = config("llama", num_hidden_layers=2)
EXACT: dict[str, Any] = {"activations": "float32", "cache": "float32"}
TEXT = tokens()
WIDTHS = {"q_proj": (64, 64), "k_proj": (64, 32), "v_proj": (64, 32), "o_proj": (64, 64), "gate_proj": (64, 96),
          "up_proj": (64, 96), "down_proj": (96, 64)}  # fmt: skip


def part(name: str) -> str:
    """Where a product is in its layer."""
    return f"{'self_attn' if name in ('q_proj', 'k_proj', 'v_proj', 'o_proj') else 'mlp'}.{name}"


def pairs(ranks: dict[str, int], layers: tuple[int, ...] = (0, 1)) -> dict[str, tuple[Array, Array]]:
    """Random A [rank, inputs] and B [outputs, rank] by "layer.product"."""
    rng, made = np.random.default_rng(5), {}
    for i in layers:
        for name, rank in ranks.items():
            k, n = WIDTHS[name]
            a, b = rng.normal(size=(rank, k)) / k**0.5, rng.normal(size=(n, rank)) / rank
            made[f"{i}.{part(name)}"] = a.astype(np.float32), b.astype(np.float32)
    return made


def saved(path: Path, held: dict[str, tuple[Array, Array]], dtype: Any = np.float32, **settings: Any) -> Path:
    """The folder that peft writes."""
    path.mkdir(parents=True)
    found = {
        f"base_model.model.model.layers.{name}.lora_{letter}.weight": matrix.astype(dtype)
        for name, pair in held.items() for letter, matrix in zip("AB", pair, strict=True)
    }  # fmt: skip
    (path / WEIGHTS).write_bytes(safetensors(found))
    usual = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "fan_in_fan_out": False, "use_dora": False}
    (path / CONFIG).write_text(json.dumps({**usual, **settings}))
    return path


def merged(held: dict[str, tuple[Array, Array]], scales: dict[str, float]) -> dict[str, Array]:
    """The model's tensors with adapters in them; scales by product."""
    found = tensors(SETTINGS)
    for name, (a, b) in held.items():
        found[f"model.layers.{name}.weight"] += np.float32(scales[name.rpartition(".")[2]]) * (b @ a)
    return found


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model as a folder and as GGUF, and their bundles with adapters for all products."""
    place, held = tmp_path_factory.mktemp("peft"), tensors(SETTINGS)
    lora = Training(adapters=Lora(5, alpha=10.0, targets=("query", "key", "value", "result", "gate", "up", "down")))
    made: dict[str, Any] = {
        "safetensors": folder(place / "folder", SETTINGS, held), "gguf": gguf_file(place / "one.gguf", SETTINGS, held),
    }  # fmt: skip
    for kind in ("safetensors", "gguf"):
        made[f"{kind} bundle"] = convert(made[kind], trainable=lora, **EXACT).bundle
    return made


def adapted(data: bytes, adapter: Adapter) -> Array:
    engine = Engine(lite_runtime.load(data), 64)
    sequence = engine.start(engine.attach(adapter))
    return engine.run([Part(sequence, TEXT, len(TEXT))])[0]


CASES: dict[str, tuple[dict[str, int], dict[str, Any], dict[str, float]]] = {
    "usual": ({"q_proj": 2, "v_proj": 2}, {}, {"q_proj": 3, "v_proj": 3}),
    "all": (dict.fromkeys(WIDTHS, 4), {"r": 4, "lora_alpha": 2}, dict.fromkeys(WIDTHS, 0.5)),
    "rslora": ({"k_proj": 4}, {"r": 4, "use_rslora": True}, {"k_proj": 3}),
    "patterns": (
        {"q_proj": 2, "down_proj": 5},
        {"rank_pattern": {"down_proj": 5}, "alpha_pattern": {"mlp.down_proj": 10, "proj": 99}},
        {"q_proj": 3, "down_proj": 2},
    ),
}


@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
@pytest.mark.parametrize("case", CASES)
def test_an_adapter_is_the_merged_model(files: dict[str, Any], tmp_path: Path, case: str, kind: str) -> None:
    ranks, settings, scales = CASES[case]
    held, data = pairs(ranks), files[f"{kind} bundle"]
    found = from_peft(saved(tmp_path / "adapter", held, **settings), bundle.read(data))
    weights = merged(held, scales)
    same = folder(tmp_path / "merged", SETTINGS, weights) if kind == "safetensors" else gguf_file(
        tmp_path / "merged.gguf", SETTINGS, weights
    )  # fmt: skip
    wanted, plain = logits_of(convert(same, **EXACT).bundle, TEXT), logits_of(data, TEXT)
    got = adapted(data, found)
    assert np.abs(got - wanted).max() < 1e-4 * np.ptp(wanted)
    assert np.abs(plain - wanted).max() > 0.05 * np.ptp(wanted)
    back = to_peft(found, bundle.read(data), tmp_path / "back")
    np.testing.assert_allclose(adapted(data, from_peft(back, bundle.read(data))), got, rtol=0, atol=1e-5)
    written = json.loads((back / CONFIG).read_text())
    assert written["r"] == written["lora_alpha"] == max(ranks.values()) and "q_proj" in written["target_modules"]


def test_layers_and_products_that_are_left_out_stay(files: dict[str, Any], tmp_path: Path) -> None:
    held = pairs({"v_proj": 2}, layers=(1,))
    found = from_peft(saved(tmp_path / "adapter", held, np.float16), bundle.read(files["gguf bundle"]))
    assert sum(bool(array.any()) for array in found.arrays.values()) == 2
    assert found.arrays["layer.1.value.lora_a"].shape == (64, 2) and found.arrays["layer.0.gate.lora_a"].shape == (
        64,
        1,
    )


def test_commands(files: dict[str, Any], tmp_path: Path) -> None:
    base, out = tmp_path / "base.mslite", tmp_path / "me.msstate"
    base.write_bytes(files["gguf bundle"])
    given = saved(tmp_path / "adapter", pairs({"q_proj": 2, "v_proj": 2}))
    assert as_json("adapter", given, base, "-o", out) == {"output": str(out), "products": 14, "ranks": [1, 2]}
    assert "msedge chat" in msedge("adapter", given, base, "-o", out)[0]
    assert "adapters of 14 products" in msedge("adapter", out, base, "-o", tmp_path / "back")[0]
    again = from_peft(tmp_path / "back", bundle.read(base))
    np.testing.assert_allclose(
        again.flat(bundle.read(base).metadata["language"]),
        Adapter.load(out).flat(bundle.read(base).metadata["language"]), rtol=1e-6, atol=1e-7,
    )  # fmt: skip
    assert "msedge adapter FOLDER model.mslite" in msedge("convert", given, "-o", tmp_path / "x.mslite", code=3)[1]


SETTINGS_REFUSED = [
    ({"peft_type": "IA3"}, "peft_type: expected LORA, got 'IA3'"), ({"use_dora": True}, "use_dora"),
    ({"fan_in_fan_out": True}, "fan_in_fan_out"), ({"bias": "all"}, "bias: expected none, got 'all'"),
    ({"modules_to_save": ["lm_head"]}, "modules_to_save"), ({"lora_alpha": "8"}, "lora_alpha"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights: .* got 'pissa'"),
    ({"alpha_pattern": {"^model.*": 3}}, "alpha_pattern"), ({"use_rslora": 3}, "use_rslora"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words"), SETTINGS_REFUSED)
def test_settings_that_are_refused(files: dict[str, Any], tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    given = saved(tmp_path / "adapter", pairs({"q_proj": 2}), **settings)
    with pytest.raises(ConvertError, match=words.replace("[", r"\[")):
        from_peft(given, bundle.read(files["gguf bundle"]))


def test_weights_that_are_refused(files: dict[str, Any], tmp_path: Path) -> None:
    base, held = bundle.read(files["gguf bundle"]), pairs({"q_proj": 2})
    name, (a, b) = next(iter(held.items()))
    wide = {name: (np.zeros((9, 64), np.float32), np.zeros((64, 9), np.float32))}
    cases: list[tuple[dict[str, tuple[Array, Array]], str]] = [
        (wide, "rank of at most 5, as the bundle has, got 9"), ({name: (a[:, :32], b)}, "it belongs to another model"),
        ({name: (a, b[:, :1])}, "it belongs to another model"), ({"0.self_attn.x_proj": (a, b)}, "got 'base_model"),
        ({"7.self_attn.q_proj": (a, b)}, "adapters of query, e.g. layer.7.query, .* belongs to another"),
        ({}, "got no tensors"),
        ({name: (a[0], b)}, "a matrix of floats"),
    ]  # fmt: skip
    for i, (wrong, words) in enumerate(cases):
        with pytest.raises(ConvertError, match=words):
            from_peft(saved(tmp_path / str(i), wrong), base)
    with pytest.raises(InputError, match="finite"):
        from_peft(saved(tmp_path / "nan", {name: (a * np.float32(np.nan), b)}), base)
    alone = saved(tmp_path / "alone", held)
    (alone / WEIGHTS).write_bytes(safetensors({f"base_model.model.model.layers.{name}.lora_A.weight": a}))
    with pytest.raises(ConvertError, match="got lora_A alone"):
        from_peft(alone, base)
    (alone / WEIGHTS).rename(alone / "adapter_model.bin")
    with pytest.raises(ConvertError, match="pickle"):
        from_peft(alone, base)


def test_bundles_that_are_refused(files: dict[str, Any], tmp_path: Path) -> None:
    given = saved(tmp_path / "adapter", pairs({"q_proj": 2}))
    plain = bundle.read(convert(files["gguf"], **EXACT).bundle)
    with pytest.raises(InputError, match="takes no adapters"):
        from_peft(given, plain)
    few = bundle.read(convert(files["gguf"], trainable=Training(adapters=Lora(3, targets=("value",))), **EXACT).bundle)
    with pytest.raises(ConvertError, match=r"the bundle takes them for value of some layers; .* --lora 3:query,value"):
        from_peft(given, few)
    with pytest.raises(InputError, match="expected an adapter of this bundle"):
        to_peft(from_peft(given, bundle.read(files["gguf bundle"])), few, tmp_path / "out")
    assert not (tmp_path / "out").exists()
