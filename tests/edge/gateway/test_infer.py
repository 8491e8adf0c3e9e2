"""Unusual requests: clients that disconnect, models whose only signature is not named predict."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from edge.gateway.exchange import Answer, Ask
from edge.gateway.infer import LARGE
from lite_runtime import bundle
from tests.edge.gateway.http.raw import Raw, answer, request, scaled_request
from tests.edge.gateway.live import Live, live, scaled

SHAPE = (LARGE // 10, 4)


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Live]:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as made:
        yield made


def _large() -> Ask:
    """More JSON than the loop's thread reads itself."""
    x = np.ones(SHAPE, np.float32)
    tensor = {"name": "x", "shape": list(SHAPE), "datatype": "FP32", "data": x.ravel().tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    assert len(body) > LARGE
    return Ask("m", "", {}, memoryview(body), "127.0.0.1")


def test_a_client_that_disconnects_at_once_leaves_nothing_behind(there: Live) -> None:
    """What was to be done in a task that never began is not begun either, and nothing warns of it."""
    replies: list[Answer] = []

    async def leave() -> list[str]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            there.gateway.infer(_large(), replies.append)()
            await asyncio.sleep(0.05)
            gc.collect()
        return [str(warning.message) for warning in seen]

    assert there.call(leave()) == []
    assert not replies and not there.gateway.under_way
    assert there.gateway.repository.route("m").in_flight == 0


def test_the_last_client_of_a_version_that_is_gone(there: Live) -> None:
    """Its leaving is no reason to count for that version again."""

    async def never(what: Any, given: Any) -> Any:
        await asyncio.Event().wait()

    async def leave() -> list[tuple[str, str]]:
        gateway = there.gateway
        gateway.aside = never  # type: ignore[method-assign]
        cancel = gateway.infer(_large(), lambda answer: None)
        await asyncio.sleep(0)
        await gateway.unload("m", {})
        assert [key for key, _ in gateway.statistics] == [("m", "1")]
        assert "m" in gateway.scheduler.snapshot()["models"]
        cancel()
        return [key for key, _ in gateway.statistics]

    assert there.call(leave()) == []
    assert not there.gateway.under_way and not there.gateway.scheduler.snapshot()["models"]


def test_the_only_signature_is_the_default(tmp_path: Path) -> None:
    held = lite_runtime.load(str(scaled(tmp_path / "x.mslite", 3.0))).bundle
    path = tmp_path / "score.mslite"
    bundle.write(path, {"score": held.signatures["predict"]})
    x = np.ones((2, 4), np.float32)
    with live({"m": path}) as there, Raw(there.port) as raw:
        for binary in (True, False):
            np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, model="m", binary=binary))), 3 * x)
        np.testing.assert_array_equal(answer(raw.ask(scaled_request(x, model="m", signature="score"))), 3 * x)
        got = raw.ask(scaled_request(x, model="m", signature="predicts"))
        assert got.status == 400 and "score" in got.error


@pytest.mark.parametrize("kind", ["image/jpeg", "Image/JPEG", "AUDIO/wav"])
def test_media_types_ignore_case(there: Live, kind: str) -> None:
    """A body of such a type is the one input's bytes, here those of floats."""
    x = np.arange(4, dtype=np.float32)
    with Raw(there.port) as raw:
        got = raw.ask(request("/v2/models/m/infer", x.tobytes(), {"Content-Type": kind}))
        assert got.status == 200
        assert got.body[int(got.fields["inference-header-content-length"]) :] == (2 * x).tobytes()
