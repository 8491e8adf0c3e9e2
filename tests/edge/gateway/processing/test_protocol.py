"""What a client sends and reads, with NVIDIA's own client as the client."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from edge.gateway.processing import Processing
from edge.gateway.protocol.request import Request, read
from edge.gateway.protocol.response import write
from lite_runtime.bundle.processing import AFTER, BEFORE, SOURCES, check
from lite_runtime.graph import Array
from tests.edge.gateway.processing.files import declared, png, port, ports, texts

httpclient = pytest.importorskip("tritonclient.http")
RNG = np.random.default_rng(4)
PICTURES = [RNG.integers(0, 256, (6, 9, 3), dtype=np.uint8) for _ in range(2)]
STEPS = [{"step": "image"}, {"step": "resize", "size": 4}, {"step": "normalize", "scale": 1 / 255}]
ANSWER = {"names": ["p", "label"], "of": ["y"], "steps": [{"step": "top_k", "k": 2, "labels": ["ä", "b", "c"]}]}
DOCS = (Path(__file__).parents[4] / "docs" / "processing.md").read_text("utf-8")


@pytest.fixture(scope="module")
def processing() -> Processing:
    model = ports([port("x", "float32", "n", 4, 4, 3)], [port("y", "float32", "n", 3)])
    return Processing(declared(STEPS, [ANSWER]), model)


def answered(processing: Processing, request: Request) -> tuple[dict[str, Array], Array]:
    """The reply as the client reads it, and what the model was given."""
    given = processing.before(request.inputs)["x"]
    outputs = processing.after({"y": np.array([[0.1, 0.7, 0.2]] * len(given), np.float32)})
    reply = write("m", "1", request, outputs, processing.ports, {}, {})
    body = b"".join(bytes(part) for part in reply.parts)
    result = httpclient.InferenceServerClient.parse_response_body(body, header_length=reply.header_length)
    return {name: result.as_numpy(name) for name in processing.ports.outputs}, given


def test_files_as_bytes(processing: Processing) -> None:
    asked = httpclient.InferInput("file", [2], "BYTES")
    asked.set_data_from_numpy(texts(*map(png, PICTURES)))
    body, length = httpclient.InferenceServerClient.generate_request_body([asked])
    request = read(body, length, lambda _: processing.ports)
    assert request.rows == 2
    made, given = answered(processing, request)
    np.testing.assert_allclose(made["p"], [[0.7, 0.2]] * 2)
    assert [[word.decode() for word in row] for row in made["label"]] == [["b", "c"]] * 2
    np.testing.assert_array_equal(given, processing.before({"file": texts(*map(png, PICTURES))})["x"])


def test_a_picture_as_the_whole_body(processing: Processing) -> None:
    request = read(png(PICTURES[0]), 0, lambda _: processing.ports)
    assert request.rows == 1
    _, given = answered(processing, request)
    np.testing.assert_array_equal(given, processing.before({"file": texts(png(PICTURES[0]))})["x"])


def test_the_guides_declaration_is_one(tmp_path: Path) -> None:
    found = re.search(r"```toml\n(.*?)```", DOCS, re.DOTALL)
    assert found is not None
    document = tomllib.loads(found[1].replace('labels_file = "labels.txt"', "labels = ['a', 'b', 'c', 'd', 'e']"))
    model = ports([port("input", "float32", "n", 3, 224, 224)], [port("logits", "float32", "n", 5)])
    made = Processing(document | {"version": 1}, model)
    assert list(made.ports.outputs) == ["probabilities", "labels"]


@pytest.mark.parametrize("step", [*SOURCES, *BEFORE, *AFTER])
def test_the_guide_names_every_step_and_option(step: str) -> None:
    rows = [line for line in DOCS.splitlines() if line.startswith("|") and f"`{step}`" in line.split("|")[1]]
    assert rows, step
    options = (SOURCES.get(step) or BEFORE.get(step) or AFTER.get(step) or {}).keys()
    assert [name for name in options if not any(f"`{name}`" in row for row in rows)] == []


def test_an_empty_declaration_is_one() -> None:
    assert check({"version": 1}) == {"version": 1, "inputs": [], "outputs": []}
