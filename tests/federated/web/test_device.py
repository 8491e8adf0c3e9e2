"""A device in JavaScript draws, computes and answers as one in Python."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import converter
from converter.ahead.package import runtime_files
from federated.client.device import Device
from federated.client.lite import LiteLearner
from federated.client.state import StateStore
from federated.codec import Codec, Spec
from federated.config import parse
from federated.data import order, split, support_query
from federated.errors import FederatedError
from federated.learner import Batch
from federated.messages.packed import pack, unpack
from federated.run import start_of
from federated.server.federation import Federation
from federated.web import modules
from lite_runtime.graph import Array
from lite_runtime.native.target import host
from tests.federated.fleets import fleet

NODE = shutil.which("node")
SCRIPT = Path(__file__).with_name("device.mjs")
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(NODE is None, reason="no node")
BATCH = 8


def text(array: Array | bytes) -> str:
    content = array if isinstance(array, bytes) else np.ascontiguousarray(array).tobytes()
    return base64.b64encode(content).decode()


def ask(folder: Path, task: str, given: Any) -> Any:
    assert NODE is not None
    done = subprocess.run(
        [NODE, str(SCRIPT), str(folder), task], input=json.dumps(given), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was built for pages of a trainable bundle, which is in it."""
    from cloud.zoo import mlp

    root = tmp_path_factory.mktemp("page")
    converter.convert(mlp(6, 3), trainable="*", output=root / "model.mslite")
    built = root / "web"
    if host() is not None:
        sizes = {"gradients": BATCH, "evaluate": 1}
        shapes = {f"{one}/x": (size, 6) for one, size in sizes.items()}
        shapes |= {f"{one}/labels": (size,) for one, size in sizes.items()}
        converter.build(root / "model.mslite", built, signatures=tuple(sizes), shapes=shapes)
    else:
        built.mkdir()
        for name, content in runtime_files("0").items():
            (built / name).write_bytes(content)
    for name, content in {**modules(), "model.mslite": (root / "model.mslite").read_bytes()}.items():
        (built / name).write_bytes(content)
    return built


def examples_of(name: str, data: Batch) -> dict[str, Any]:
    inputs = {key: text(values) for key, values in data.inputs.items()}
    return {"name": name, "inputs": inputs, "labels": text(data.labels)}


def test_draws_are_numpys(folder: Path) -> None:
    rng = np.random.default_rng(19)
    cases = []
    for seed in (0, 1, 2**32 - 1, 2**32, 2**64 - 1, *rng.integers(0, 2**63, 20).tolist()):
        count, share, some = int(rng.integers(1, 60)), float(rng.uniform(0.05, 0.95)), int(rng.integers(1, 6))
        labels = rng.integers(0, 5, count).tolist()
        cases.append(
            {"seed": str(seed), "count": count, "steps": int(rng.integers(1, 9)), "batch": int(rng.integers(1, 20)),
             "labels": labels, "share": share, "some": some}
        )  # fmt: skip
    found = ask(folder, "draws", cases)
    for case, got in zip(cases, found, strict=True):
        generator, rows = np.random.default_rng(int(case["seed"])), np.arange(case["count"])
        want: list[Any] = [order(case["count"], generator, case["steps"], case["batch"]).reshape(-1).tolist()]
        for kind in (np.int32, np.float32):
            data = Batch({"row": rows}, np.array(case["labels"], kind))
            for parts in (split(data, case["share"], generator), support_query(data, case["some"], generator)):
                want.append([part.inputs["row"].tolist() for part in parts])
        assert got == want


@pytest.mark.parametrize("names", [[], ["float32"], ["float16"]])
def test_parameters_have_the_same_bytes(folder: Path, names: list[str]) -> None:
    rng = np.random.default_rng(20)
    values = (rng.standard_normal(210) * 10.0 ** rng.integers(-9, 5, 210)).astype(np.float32)
    values[:4] = 0.0, -0.0, 2.0**-24, 65503.0
    made = {"params": {"ünï \"q\"\\": values[:60].reshape(3, 20), "a": values[60:]}}
    spec, codec = Spec.of(made), Codec.parse(names)
    leaves = [{"path": list(leaf.path), "shape": list(leaf.shape)} for leaf in spec.leaves]
    data = codec.encode(made, np.random.default_rng(0)).data
    whole = codec.encode(made, np.random.default_rng(0), whole=True).data
    given = {"names": names, "leaves": leaves, "values": text(spec.flatten(made)), "data": text(whole)}
    found = ask(folder, "codec", given)
    assert base64.b64decode(found["data"]) == data
    assert found["values"] == text(spec.flatten(codec.decode(data, spec)))


CONFIG: Mapping[str, Any] = {
    "model": {"bundle": "model.mslite"}, "algorithm": {"name": "fedavg"}, "local": {"steps": 5, "batch": BATCH},
    "rounds": {"count": 1, "seed": 7}, "evaluation": {"every": 1, "support": 5}, "data": {"test": 0.25},
}  # fmt: skip
ALGORITHMS: list[dict[str, Any]] = [
    {"name": "fedavg", "rate": 0.3}, {"name": "fedprox", "mu": 0.5, "momentum": 0.9}, {"name": "reptile"},
    {"name": "fedadam", "momentum": 0.5, "rate": 0.1}, {"name": "fedmomentum"},
]  # fmt: skip


def messages(folder: Path, **sections: Any) -> list[bytes]:
    """A greeting, a round's work, evaluations with adapting and without."""
    config = parse({**CONFIG, **sections}, folder)
    federation = Federation.begin(config, start_of(folder / "model.mslite")[1])
    words = {"support": 5, "lowest": 0.0, "batch": BATCH}
    evaluations = [federation.task("evaluate", 1, {"held_out": not steps, "steps": steps, **words}) for steps in (3, 0)]
    return [federation.hello(), federation.work(1), *evaluations]


KINDS = ("hello", "update", "evaluation", "evaluation")


@pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda algorithm: algorithm["name"])
def test_answers_are_those_of_python(folder: Path, algorithm: dict[str, Any], tmp_path: Path) -> None:
    """Python computes with the kernels of x86-64-v2, whose results WebAssembly's kernels have to the bit."""
    data = fleet(1).shards["device-00"]
    codec = {"up": ["float16"] if algorithm["name"] == "reptile" else [], "down": ["float32"]}
    sent = messages(folder, algorithm=algorithm, codec=codec)
    found = ask(folder, "answer", {"examples": examples_of("device-00", data), "messages": [text(m) for m in sent]})
    np.savez(tmp_path / "data.npz", labels=data.labels, **data.inputs)
    for at, message in enumerate(sent):
        (tmp_path / f"{at}.message").write_bytes(message)
    python(tmp_path, folder)
    for at, (mine, kind) in enumerate(zip(found, KINDS, strict=True)):
        (meta, body), (meant, content) = unpack(base64.b64decode(mine)), unpack((tmp_path / f"{at}.reply").read_bytes())
        assert (meta.get("why"), meta["kind"]) == (None, kind)
        assert meta.pop("proof", None) != meant.pop("proof", "")  # each has its own secret
        for key in ("loss", "before", "after"):
            np.testing.assert_allclose(meta.pop(key, 0), meant.pop(key, 0), rtol=1e-6)
        assert meta == meant
        assert body.keys() == content.keys()
        for name in body:
            np.testing.assert_array_equal(body[name], content[name])


PYTHON = """
import sys
from pathlib import Path
import numpy as np
from federated.client.nodes import device_from
scratch, bundle = Path(sys.argv[1]), sys.argv[2]
arrays = dict(np.load(scratch / "data.npz"))
np.savez(scratch / "own.npz", **arrays, device=np.repeat("device-00", len(arrays["labels"])))
words = {"device": "device-00", "bundle": bundle, "data": str(scratch / "own.npz"), "state": str(scratch / "state")}
made = device_from(words)
for at in range(4):
    (scratch / f"{at}.reply").write_bytes(made.answer((scratch / f"{at}.message").read_bytes()))
"""


def python(scratch: Path, folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MSEDGE_TARGET": "x86-64-v2"}
    subprocess.run(
        [sys.executable, "-c", PYTHON, str(scratch), str(folder / "model.mslite")], env=environment, check=True
    )


@pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
def test_what_a_page_refuses(folder: Path) -> None:
    data = fleet(1).shards["device-00"]
    other = {"name": "scaffold"}
    sent = [
        messages(folder, algorithm=other)[1],
        messages(folder, codec={"up": ["int8"]})[1],
        messages(folder, codec={"down": ["difference", "int8"]})[1],
        messages(folder, local={"steps": 5, "batch": 4})[1],
        messages(folder, privacy={"clip": 1.0})[1],
        messages(folder, privacy={"secure": True, "clip": 1.0})[1],
        messages(folder, algorithm={"name": "fedavg", "clip_norm": 1.0})[1],
        pack({"version": 2, "kind": "sync"}, {}),
        pack({"version": 1, "kind": "hello"}, {}),
        pack({"version": 2, "kind": "train", "round": 1, "steps": 0, "batch": 8, "seed": 0}, {}),
    ]
    told = [
        "an algorithm of fedavg", "float32 or float16", "float32 or float16", "batches of 8", "privacy", "privacy",
        "clip_norm", "not sync", "version 2", "steps from 1",
    ]  # fmt: skip
    damaged = [b"", sent[0][:40], sent[0][:-1], sent[0][:60] + b"\0" + sent[0][61:]]
    given = {"examples": examples_of("device-00", data), "messages": [text(m) for m in [*sent, *damaged]]}
    found = ask(folder, "answer", given)
    for answer, why in zip(found, told, strict=False):
        meta, body = unpack(base64.b64decode(answer))
        assert meta["kind"] == "refusal" and why in meta["why"] and not body, meta
    for answer in found[len(sent) :]:
        assert answer.startswith("FederatedError: message: expected this msedge's format")


def test_python_has_the_same_forms(folder: Path) -> None:
    """The tests above compare with what a device in this process does; it must not refuse what they send."""
    learner, start = start_of(folder / "model.mslite")
    assert isinstance(learner, LiteLearner)
    data = fleet(1).shards["device-00"]
    device = Device("device-00", learner, data, StateStore(durable=False), start.bundle)
    for message, kind in zip(messages(folder), KINDS, strict=True):
        assert unpack(device.answer(message))[0]["kind"] == kind
    with pytest.raises(FederatedError):
        device.answer(b"")
