"""`msedge plan`: a plan of a run's step: explained, drawn, saved, compared, checked against what compiles."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from msgspec.structs import replace

from cloud.parallel.explaining.examples import EXAMPLES
from cloud.train.jobs.config import read
from cloud.train.jobs.job import job_of
from tests.edge.cli.test_train import CONFIG, msedge

HERE = ("--topology", "cpu8", "--seconds", "10")
PAIR = ("--topology", "HERE/pair.toml", "--seconds", "10")
"""Two devices: to prove that nothing fits on any mesh of eight takes many seconds."""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("plan")
    np.savez(made / "d.npz", x=np.zeros((64, 4), np.float32), labels=np.zeros(64, np.int64))
    (made / "run.toml").write_text(CONFIG.replace("batch = 10", "batch = 16"))
    (made / "pair.toml").write_text('device = "l4"\n[[levels]]\nsize = 2\nlatency = 1e-5\nbandwidth = 1e10\n')
    return made / "run.toml"


def test_a_plan_that_compiles_as_predicted(config: Path) -> None:
    out, _ = msedge("plan", config, *HERE, "--memory", "1GiB", "--check", "cpu", "--json")
    made = json.loads(out)
    plan = made["plan"]
    assert made["chosen"].startswith("compiled ") and made["compiled"]["peak_bytes"] > 0
    assert made["devices"] == 8 and int(np.prod(plan["mesh"]["sizes"])) == 8 and made["check"]["fits"]
    assert plan["estimate"]["peak_bytes"] > 0 and made["step_seconds"] > 0 and made["limit"] == 1 << 30
    assert any("layer0.weight" in one["name"] and one["shape"] == [8, 4] for one in plan["entering"])


def test_a_run_follows_a_plan_that_was_saved(config: Path) -> None:
    saved = config.parent / "kept.json"
    msedge("plan", config, *HERE, "--expert", "dp", "--check", "cpu", "-o", saved)
    words = read(config)
    job = job_of(replace(words, parallel=replace(words.parallel, mode="auto", plan="kept.json")))
    reports = job.fit()
    assert job.trainer.steps_done == 2 * 3
    alone = job_of(words).fit()
    assert reports[-1].training.loss == pytest.approx(alone[-1].training.loss, rel=1e-5)
    train = "train", config, "--set", "parallel.mode=auto", "--set", "parallel.plan=kept.json"
    _, err = msedge(*train, "--set", "train.batch=32", code=3)
    assert "made for another step: it has batch.inputs.x float32[16, 4]" in err


def test_explained_drawn_saved_and_compared(config: Path) -> None:
    folder = config.parent
    files = "-o", folder / "plan.json", "--picture", folder / "plan.html"
    text, _ = msedge("plan", config, *HERE, "--explain", "--expert", "dp", "--set", "train.batch=32", *files)
    assert text.startswith("data parallel over m0") and "8 devices of cpu8 as" in text and "peak memory" in text
    assert "not compiled: the plan is for the GPU's compiler and the devices are CPUs" in text
    for words in ("inputs of the step and", "with the most FLOPs", "collectives", "costs of other plans"):
        assert words in text
    assert "fsdp" in text and "ep " in text and "</html>" in (folder / "plan.html").read_text()
    pinned = "plan", config, *HERE, "--set", "train.batch=32", "--pin", "params.layer0.weight=0:m0"
    out, _ = msedge(*pinned, "--diff", folder / "plan.json", "--json")
    made = json.loads(out)
    lies = {one["name"]: one["split"] for one in made["plan"]["entering"]}
    assert lies["params.layer0.weight"] == [[0], []]
    assert ["params.layer*.weight", "[8, 4]", "[8/m0, 4]"] in [
        [one["name"], one["before"], one["after"]] for one in made["difference"]["entering"]
    ]
    _, err = msedge("plan", config, *HERE, "--diff", folder / "plan.json", code=3)
    assert "made for another step: it has batch.inputs.x float32[32, 4]" in err and "msedge plan" in err


def test_the_price_of_compressed_gradients(config: Path) -> None:
    """With slow links; of the method that the run has."""
    there = "plan", config, "--topology", "2x4-slow", "--expert", "dp", "--compiled", "0", "--explain"
    text, _ = msedge(*there, "--set", "parallel.mode=data", "--set", "parallel.compress=powersgd:2")
    assert "gradients across 3 GB/s: powersgd:2 takes" in text and "int8" not in text


@pytest.mark.parametrize(
    "words, code, expected",
    [
        (["--topology", "nowhere"], 3, "expected a TOML file or one of"),
        ([*HERE, "--memory", "much"], 3, "--memory: expected bytes"),
        ([*PAIR, "--memory", "1"], 3, "no plan fits with --set train.recompute=1.0 either"),
        ([*HERE, "--expert", "genius"], 3, "unknown expert 'genius'; known: dp"),
        ([*HERE, "--pin", "params.nothing=0:m0"], 3, "no input or operator of that name"),
        ([*HERE, "--pin", "params.layer0.weight=0"], 3, "expected GLOB=DIM:AXIS"),
        ([*HERE, "--model", "mlp"], 2, "one of them"),
    ],
)
def test_mistakes(config: Path, words: list[str], code: int, expected: str) -> None:
    _, err = msedge("plan", config, *(word.replace("HERE", str(config.parent)) for word in words), code=code)
    assert expected in err


def test_a_built_in_model() -> None:
    text, err = msedge("plan", "--model", "mlp", "--topology", "h100x8", "--expert", "dp", "--seconds", "5")
    assert text.startswith("data parallel over m0") and "searching for a plan on 8 devices of h100x8" in err
    _, err = msedge("plan", "--model", "mlp", "--set", "train.batch=1", code=2)
    assert "no configuration to change" in err


def test_built_in_models_are_as_large_as_they_say() -> None:
    for name, sizes in {"mlp": (134e6, 135e6), "gpt": (110e6, 125e6), "moe": (450e6, 500e6)}.items():
        example = EXAMPLES[name]()
        count = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(example.state["params"]))
        assert sizes[0] < count < sizes[1], count
        state, metrics = jax.eval_shape(example.step, example.state, example.batch)
        assert jax.tree.structure(state) == jax.tree.structure(example.state) and metrics["loss"].shape == ()
