"""The status document adds up, fits its schema, and reports missing figures as missing."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from typing import Any, get_type_hints

import jsonschema
import pytest

from edge.gateway.job import Job
from edge.gateway.operate.statistics import Statistics
from edge.gateway.pages import status as module
from edge.gateway.pages.schemas import SCHEMAS
from edge.gateway.pages.status import MOST, Status, status

NOW = time.perf_counter()
SHADOW = {"version": "2", "fraction": 0.5, "compared": 3, "dropped": 1, "failed": 0, "rows": 4, "agreed": 3}


def made(index: list[dict[str, Any]], statistics: Statistics, now: float = NOW) -> Status:
    """A document, checked against its schema on the way."""
    found = status(
        "1.2.3", "ready", 10.0, now, index, statistics,
        queued={"jobs": 2, "rows": 5}, memory={"process": 100, "models": 50, "limit": None},
    )  # fmt: skip
    schema = {"$ref": "#/components/schemas/Status", "components": {"schemas": SCHEMAS}}
    jsonschema.Draft202012Validator(schema).validate(json.loads(json.dumps(found, allow_nan=False)))
    return found


def entry(name: str = "a", version: str = "1", **more: Any) -> dict[str, Any]:
    return {"name": name, "version": version, "state": "READY", "reason": ""} | more


def answered(statistics: Statistics, name: str, version: str, seconds: float, *, rows: int = 1, batch: int = 4) -> None:
    job = Job({}, rows, print, arrived=NOW - seconds)
    job.begun, job.computed, job.done, job.batch = NOW - seconds, NOW, NOW, batch
    statistics.of(name, version).record(job, NOW)


def test_no_requests_yet() -> None:
    found = made([], Statistics())
    assert found["latency"] == {"p50": None, "p95": None, "p99": None}
    assert found["recent"] == {"requests": 0, "rows": 0}
    assert sum(found["latencies"]["counts"]) == sum(found["batches"]["counts"]) == 0
    assert found["models"] == []
    assert found["refused"] == {}


def test_figures_are_those_of_all_models_together() -> None:
    statistics = Statistics()
    for i in range(99):  # two to a batch: these began together
        answered(statistics, "a", "1", 0.001 + i // 2 * 1e-6, rows=2)
    answered(statistics, "b", "7", 1.0)
    found = made([entry(), entry("b", "7")], statistics)
    assert found["answered"] == {"requests": 100, "rows": 199}
    assert sum(found["latencies"]["counts"]) == 100
    assert sum(found["batches"]["counts"]) == 199
    p50, p99 = found["latency"]["p50"], found["latency"]["p99"]
    assert p50 is not None and p99 is not None
    assert 0.0005 < p50 < 0.002
    a, b = found["models"]
    assert (a["answered"], a["rows"], a["batches"]) == (99, 198, 50)
    assert b["latency"]["p50"] == pytest.approx(1.0, rel=0.2)


def test_old_requests_are_not_recent() -> None:
    statistics = Statistics()
    answered(statistics, "a", "1", 0.001)
    found = made([entry()], statistics, now=NOW + 3600)
    assert found["recent"] == {"requests": 0, "rows": 0}
    assert found["models"][0]["answered"] == 1
    assert found["models"][0]["latency"]["p50"] is None


def test_a_version_idle_beside_a_busy_one_is_left_out_of_rates() -> None:
    statistics = Statistics()
    answered(statistics, "a", "1", 0.001)
    statistics.of("a", "1").last -= 2 * module.IDLE
    answered(statistics, "b", "1", 0.001)
    assert sum(made([entry(), entry("b")], statistics)["latencies"]["counts"]) == 1


def test_refusals_by_reason() -> None:
    statistics = Statistics()
    statistics.refused.update({("infer", 429): 3, ("manage", 403): 2, ("infer", 418): 1})
    assert made([], statistics)["refused"] == {"overloaded": 3, "not allowed (manage)": 2, "418": 1}


@pytest.mark.parametrize(("largest", "difference"), [(0.5, 0.5), (math.inf, None)])
def test_shadows(largest: float, difference: float | None) -> None:
    (model,) = made([entry(shadow=SHADOW | {"largest": largest})], Statistics())["models"]
    assert model["shadow"] is not None
    assert model["shadow"]["agreement"] == 0.75
    assert model["shadow"]["difference"] == difference


def test_a_shadow_that_compared_nothing() -> None:
    (model,) = made([entry(shadow=SHADOW | {"rows": 0, "agreed": 0, "largest": 0.0})], Statistics())["models"]
    assert model["shadow"] is not None
    assert model["shadow"]["agreement"] is None


def test_what_the_index_shows_in_addition() -> None:
    personal = {"devices": 3, "capacity": 8, "bytes": 10, "hits": 5, "misses": 4}
    index = [entry(labels=["canary"], share=0.25, queued=7, bytes=9, in_flight=2, personal=personal, digest="ab")]
    (model,) = made(index, Statistics())["models"]
    assert (model["labels"], model["share"], model["queued"], model["bytes"]) == (["canary"], 0.25, 7, 9)
    assert model["personal"] == personal


def test_a_model_without_a_version() -> None:
    (model,) = made([{"name": "a", "state": "UNAVAILABLE", "reason": "unloaded"}], Statistics())["models"]
    assert (model["version"], model["reason"]) == ("", "unloaded")


def test_versions_in_the_order_of_numbers() -> None:
    index = [entry(version=v) for v in ("10", "9", "1")]
    assert [m["version"] for m in made(index, Statistics())["models"]] == ["1", "9", "10"]


def test_with_very_many_models_the_most_recently_used_are_listed() -> None:
    statistics = Statistics()
    answered(statistics, "m999", "1", 0.001)
    found = made([entry(f"m{i}") for i in range(1000)], statistics)
    assert len(found["models"]) == MOST
    assert found["unlisted"] == 1000 - MOST
    assert "m999" in {m["name"] for m in found["models"]}


SHAPES: Mapping[str, type] = {
    "Status": module.Status, "ModelStatus": module.ModelStatus, "Latency": module.Latency, "Histogram": module.Bars,
    "Personal": module.Personal, "Shadow": module.Shadowed,
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_types_and_schemas_name_the_same(name: str) -> None:
    assert set(get_type_hints(SHAPES[name])) == set(SCHEMAS[name]["properties"]) == set(SCHEMAS[name]["required"])
