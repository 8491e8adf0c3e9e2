"""The graph with adapters: which products have them, what it computes, and how a bundle holds both graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lite_runtime
from converter.errors import TrainingError
from converter.frontends.decoders import Settings
from converter.frontends.gguf import load
from converter.frontends.loaded import Loaded
from converter.ir import spec
from converter.lowering import in_panels, lower
from converter.training import Lora
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.language import Adapter
from lite_runtime.language.engine import Engine, Part
from tests.converter.frontends.decoders import gguf_bytes
from tests.converter.frontends.decoders.plain import logits
from tests.converter.frontends.decoders.test_conversion import (
    MIXES,
    NUMBERS,
    TEXT,
    WIDTH,
    matrices,
    metadata,
    stored,
)

ROLES = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "result": "attn_output",
         "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}  # fmt: skip


def read(mix: str, lora: Lora | None, **settings: Any) -> tuple[bytes, Loaded]:
    data = gguf_bytes.file(metadata(), stored(MIXES[mix]))
    return data, load(data, language=Settings(lora=lora, **settings))


def written(loaded: Loaded) -> bytes:
    graphs = {name: in_panels(lower(model)) for name, model in loaded.models.items()}
    return bundle.write(None, graphs, metadata=loaded.metadata)


def adapter_of(data: bytes, seed: int) -> Adapter:
    """Random numbers for the adapters that a bundle takes."""
    held, rng, arrays = bundle.read(data), np.random.default_rng(seed), {}
    about = held.metadata["language"]["adapters"]
    for row in about["targets"]:
        k, n, rank = row["inputs"], row["outputs"], about["rank"]
        arrays[f"{row['name']}.lora_a"] = (rng.normal(size=(k, rank)) / k**0.5).astype(np.float32)
        arrays[f"{row['name']}.lora_b"] = (rng.normal(size=(rank, n)) / rank**0.5).astype(np.float32)
    return Adapter(arrays, held.digest)


@pytest.mark.parametrize("mix", ["of 4 bits", "dense"])
@pytest.mark.parametrize("targets", [("query", "value"), ("*",), ("layer.1.*", "down")])
def test_logits_are_those_of_merged_weights(mix: str, targets: tuple[str, ...]) -> None:
    source, loaded = read(mix, Lora(4, alpha=2.0, targets=targets), activations="float32")
    for model in loaded.models.values():
        assert not list(spec.violations(model, upgraded=False))
    data, held = written(loaded), matrices(source)
    adapter = adapter_of(data, 1)
    for row in bundle.read(data).metadata["language"]["adapters"]["targets"]:
        _, layer, role = row["name"].split(".")
        a, b = (adapter.arrays[f"{row['name']}.lora_{part}"] for part in "ab")
        held[f"blk.{layer}.{ROLES[role]}.weight"] += np.float32(0.5) * (a @ b).T
    wanted = logits(TEXT, held.__getitem__, NUMBERS)
    engine = Engine(lite_runtime.load(data), 64)
    found: dict[int, Array] = {}
    for slot in (engine.attach(adapter), -1):
        (found[slot],) = engine.run([Part(engine.start(slot), TEXT, len(TEXT))])
    assert np.abs(found[0] - wanted).max() < 1e-3 * np.ptp(wanted)
    assert np.abs(found[0] - found[-1]).max() > 0.05 * np.ptp(wanted)


def test_the_bundle_says_where_adapters_are_and_holds_weights_once() -> None:
    _, loaded = read("all", Lora(4, targets=("query", "value")))
    _, plain = read("all", None)
    data, alone = written(loaded), written(plain)
    assert len(data) < len(alone) + 20_000 < 1.1 * len(alone)
    held = bundle.read(data)
    assert held.metadata["language"]["adapters"] == {
        "rank": 4, "factor": 1.0,
        "targets": [
            {"name": f"layer.{i}.{role}", "inputs": WIDTH, "outputs": n}
            for i in range(2) for role, n in (("query", WIDTH), ("value", WIDTH // 2))
        ],
    }  # fmt: skip
    assert "adapters" not in bundle.read(alone).metadata["language"]
    nodes = {node.name: node for node in held.signatures["adapted"].nodes if node.op == "LoraMatMul"}
    offsets = [node.attrs["offset"] for node in nodes.values()]
    sizes = [4 * (node.attrs["K"] + node.attrs["N"]) for node in nodes.values()]
    assert offsets == np.cumsum([0, *sizes[:-1]]).tolist()
    assert not any(node.op == "LoraMatMul" for node in held.signatures["predict"].nodes)


@pytest.mark.parametrize("glob", ["querys", "layer.7.query", "logits", "blk.*"])
def test_targets_that_no_product_has(glob: str) -> None:
    with pytest.raises(TrainingError, match=r"no product .*; there are query, key, value, result, gate, up, down"):
        read("dense", Lora(4, targets=("query", glob)))
