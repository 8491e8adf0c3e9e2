"""The OpenAPI document is true: requests generated from it, and requests that violate it, are answered as it says.

More of them on demand, and others each time:
MSEDGE_SCHEMA_EXAMPLES=5000 python -m pytest tests/edge/gateway/http/test_schema.py
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import lite_runtime
import msedge
from edge.gateway.pages.openapi import document
from edge.gateway.shared.region import FOLDER
from tests.converter.streams import ring_buffer
from tests.edge.gateway.live import Live, live, numbers, scaled, simple
from tests.language.encoders import bundle_of
from tests.language.talking import talking_bundle

EXAMPLES = int(os.environ.get("MSEDGE_SCHEMA_EXAMPLES", "0"))
schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")
checks = pytest.importorskip("schemathesis.checks")

SCHEMA = schemathesis.openapi.from_dict(document("0"))
FOUND = {f"{found.ok().method} {found.ok().path}": found.ok() for found in SCHEMA.get_all_operations()}
MODES = list(schemathesis.GenerationMode)
CHECKS = [
    checks.not_a_server_error,
    checks.CHECKS.get_one("status_code_conformance"),
    checks.CHECKS.get_one("content_type_conformance"),
    checks.CHECKS.get_one("response_schema_conformance"),
    checks.CHECKS.get_one("response_headers_conformance"),
]
NAMES = st.sampled_from(["scaled", "simple", "numbers"])
ROWS = st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4), min_size=1, max_size=3)
HEALTHY = {"get": {200}, "post": {200, 400}, "put": {200, 400}}
"""By method, statuses that have to be among the answers."""
ONLY = {
    **{f"/v2/{kind}sharedmemory/{path}unregister": {200} for kind in ("system", "cuda")
       for path in ("", "region/{region}/")},
    "/v2/cudasharedmemory/region/{region}/status": {404}, "/v2/cudasharedmemory/region/{region}/register": {501},
}  # fmt: skip
"""Those of paths where others are right."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A separate gateway, because models are loaded and unloaded."""
    folder: Path = tmp_path_factory.mktemp("schema")
    for make, name in ((simple, "simple"), (numbers, "numbers")):
        make(folder / f"{name}.mslite")
    scaled(folder / "scaled.mslite", 2.0)
    (folder / "talking.mslite").write_bytes(talking_bundle())
    (folder / "vectors.mslite").write_bytes(bundle_of())
    msedge.convert(ring_buffer(), output=folder / "ring.mslite")
    lite_runtime.load(folder / "ring.mslite").save_state(folder / "ring.msstate")
    memory = Path(FOLDER, f"msedge-{secrets.token_hex(8)}")
    memory.write_bytes(bytes(256))
    try:
        with live(folder, access__shared_memory="loopback", limits__regions=100_000) as made:
            made.memory = f"/{memory.name}"  # type: ignore[attr-defined]
            yield made
    finally:
        memory.unlink()


def _with_region(served: Live, operation: Any, case: Any) -> None:
    """Let the request be about a region that can be registered, or is."""
    region, told = secrets.token_hex(8), {"key": served.memory, "byte_size": 256}  # type: ignore[attr-defined]
    case.path_parameters["region"] = region
    if operation.path.endswith("/register"):
        case.body, case.media_type = told, "application/json"
    else:
        place = f"{served.address}/v2/systemsharedmemory/region/{region}/register"
        requests.post(place, json=told, timeout=300).raise_for_status()


def _enough(name: str) -> int:
    """How many requests an operation gets; fewer where another one has the same parameters and body."""
    if name.startswith("get"):
        return 25 if "{" in name else 5
    return 40


@pytest.mark.parametrize("name", FOUND)
def test_operation(served: Live, name: str) -> None:
    operation = FOUND[name]
    asked: set[int] = set()
    session = requests.Session()

    @settings(
        max_examples=EXAMPLES or _enough(name),
        derandomize=not EXAMPLES, deadline=None, database=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.data())
    def ask(data: Any) -> None:
        case = data.draw(operation.as_strategy(generation_mode=data.draw(st.sampled_from(MODES))))
        if isinstance(case.path_parameters, dict) and data.draw(st.booleans()):
            case.path_parameters["name"] = data.draw(NAMES)
            if "version" in case.path_parameters:
                case.path_parameters["version"] = data.draw(st.sampled_from(["1", "1", "2", "canary"]))
        if operation.path.endswith("infer") and data.draw(st.integers(0, 3)) == 0:
            rows = data.draw(ROWS)
            case.path_parameters.update({"name": "scaled"} | ({"version": "1"} if "{version}" in name else {}))
            case.headers, case.media_type = {}, "application/json"
            case.body = {"inputs": [{"name": "x", "shape": [len(rows), 4], "datatype": "FP32", "data": rows}]}
        if operation.path.endswith((":predict", ":explain")) and data.draw(st.booleans()):
            places = {"name": "scaled", "version": "1", "label": "1"}
            case.path_parameters.update({key: places[key] for key in case.path_parameters})
            case.headers, case.media_type = {}, "application/json"
            case.body = {"instances": data.draw(ROWS | st.just([[1.0]]))}
            if operation.path.endswith(":explain"):
                wishes = ({}, {"method": "rise", "samples": 9}, {"target": 9})
                case.body["parameters"] = data.draw(st.sampled_from(wishes))
        if operation.path.endswith("/completions") and isinstance(case.body, dict) and data.draw(st.booleans()):
            prompt = {"messages": [{"role": "user", "content": "a"}]} if "chat" in operation.path else {"prompt": "a"}
            options = {key: case.body[key] for key in ("n", "stream", "stop", "seed", "top_p") if key in case.body}
            case.body = {"model": "talking", "max_tokens": 2, **prompt, **data.draw(st.sampled_from([options, {}]))}
            case.headers, case.media_type = {}, "application/json"
        if operation.path.endswith("/embeddings") and isinstance(case.body, dict) and data.draw(st.booleans()):
            options = {key: case.body[key] for key in ("input", "encoding_format", "user") if key in case.body}
            usual = {"model": "vectors", "input": ["a text", "b"], "dimensions": data.draw(st.integers(1, 40))}
            case.body = {**usual, **data.draw(st.sampled_from([options, {}]))}
            case.headers, case.media_type = {}, "application/json"
        if operation.path.endswith("{sequence}") and data.draw(st.integers(0, 3)) == 0:
            state = (Path(served.gateway.settings.models[0]) / "ring.msstate").read_bytes()
            place = operation.path.format(name="ring", version="1", sequence="s")
            requests.put(f"{served.address}{place}", state, timeout=300).raise_for_status()
            case.path_parameters.update({"name": "ring", "sequence": "s"})
            if "{version}" in name:
                case.path_parameters["version"] = "1"
            if operation.method == "put":
                case.body, case.media_type = state, "application/octet-stream"
        if "systemsharedmemory/region" in operation.path and data.draw(st.booleans()):
            _with_region(served, operation, case)
        reply = case.call(base_url=served.address, session=session, timeout=300)
        asked.add(reply.status_code)
        case.validate_response(reply, checks=CHECKS if reply.status_code != 501 else CHECKS[1:])  # which is no failure

    ask()
    plain = operation.method == "get" and "{sequence}" not in name
    if "{version}" in name and (plain or operation.path.endswith("infer")):
        # Few drawn ones are there. Without a body an inference is refused.
        place = f"{served.address}{operation.path.format(name='scaled', version='1')}"
        asked.add(requests.request(operation.method, place, timeout=300).status_code)
    if operation.method == "put":  # a body that is no state
        place = f"{served.address}{operation.path.format(name='ring', version='1', sequence='s')}"
        asked.add(requests.put(place, b"nothing", timeout=300).status_code)
    healthy = ONLY.get(operation.path, HEALTHY[operation.method])
    assert asked >= healthy | ({404} if "{name}" in name else set()), asked
    assert "internal server error" not in served.log.getvalue()
