"""Settings of the log and of traces that change at run time, with NVIDIA's clients over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.gateway.access import tokens
from edge.gateway.adjust import Adjust, Tracing
from edge.gateway.errors import GatewayError
from edge.gateway.operate.logs import Log
from edge.gateway.operate.settings import Logs
from tests.edge.gateway.grpc.serving import listening
from tests.edge.gateway.http.raw import Raw, request, scaled_request
from tests.edge.gateway.live import Live, live, scaled

http = pytest.importorskip("tritonclient.http")
grpc = pytest.importorskip("tritonclient.grpc")
utils = pytest.importorskip("tritonclient.utils")


@pytest.fixture
def adjust() -> Iterator[Adjust]:
    log = Log(Logs(level="warning", requests=0.25), io.StringIO())
    yield Adjust(log, 0.01)
    log.close()


def test_the_start(adjust: Adjust) -> None:
    assert adjust.log_settings() == {
        "log_file": "", "log_info": False, "log_warning": True, "log_error": True, "log_verbose_level": 0,
        "log_format": "ISO8601", "log_requests": 0.25,
    }  # fmt: skip
    assert adjust.trace_settings("") == {
        "trace_level": ["TIMESTAMPS"], "trace_rate": "100", "trace_file": "", "trace_count": "-1",
        "log_frequency": "0", "trace_mode": "opentelemetry",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "level", "share"),
    [
        ({"log_info": True}, "info", 0.25),
        ({"log_info": True, "log_verbose_level": 3}, "debug", 0.25),
        ({"log_info": True, "log_verbose_level": "1"}, "debug", 0.25),
        ({"log_warning": False}, "error", 0.25),
        ({"log_requests": 1}, "warning", 1),
        ({"log_requests": "0.5"}, "warning", 0.5),
        ({"log_file": "", "log_format": "ISO8601", "log_error": True}, "warning", 0.25),
        ({}, "warning", 0.25),
    ],
)
def test_the_log_changes_and_returns(adjust: Adjust, given: Any, level: str, share: float) -> None:
    found = adjust.change_log(given)
    assert (adjust._log.level, adjust._log.share) == (level, share) and found == adjust.log_settings()
    adjust.change_log(dict.fromkeys(found))
    assert (adjust._log.level, adjust._log.share) == ("warning", 0.25)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"log_error": False}, "log_error"),
        ({"log_info": True, "log_warning": False}, "log_warning with log_info"),
        ({"log_verbose_level": 1}, "log_info with"),
        ({"log_info": 1}, "true or false"),
        ({"log_verbose_level": -1}, "whole number"),
        ({"log_verbose_level": True}, "whole number"),
        ({"log_requests": 1.5}, "0 to 1"),
        ({"log_requests": "nan"}, "0 to 1"),
        ({"log_requests": [1]}, "0 to 1"),
        ({"log_requests": 10**400}, "0 to 1"),
        ({"log_file": "/tmp/x"}, "stderr"),
        ({"log_format": "default"}, "ISO8601"),
        ({"log_info": True, "other": 1}, "other"),
    ],
)
def test_refused_changes_of_the_log_change_nothing(adjust: Adjust, given: Any, part: str) -> None:
    before = adjust.log_settings()
    with pytest.raises(GatewayError, match=part) as caught:
        adjust.change_log(given)
    assert caught.value.status == 400 and adjust.log_settings() == before


def test_traces_of_all_models_and_of_one(adjust: Adjust) -> None:
    adjust.change_trace("a", {"trace_rate": "4"})
    adjust.change_trace("", {"trace_level": "OFF"})
    assert (adjust.tracing("a"), adjust.tracing("b")) == (Tracing(False, 0.25), Tracing(False, 0.01))
    adjust.change_trace("a", {"trace_level": ["TIMESTAMPS"]})
    assert (adjust.tracing("a"), adjust.tracing("b")) == (Tracing(True, 0.25), Tracing(False, 0.01))
    adjust.change_trace("", {"trace_rate": 2})
    adjust.change_trace("a", {"trace_rate": None, "trace_level": None})
    assert adjust.tracing("a") == adjust.tracing("") == Tracing(False, 0.5)
    adjust.change_trace("", {"trace_rate": None, "trace_level": None})
    assert adjust.tracing("a") == Tracing(True, 0.01)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"trace_level": "TENSORS"}, "TENSORS"), ({"trace_level": []}, "TIMESTAMPS"), ({"trace_rate": 0}, "at least 1"),
        ({"trace_rate": "x"}, "whole number"), ({"trace_count": 3}, "trace_count"), ({"trace_file": "x"}, "endpoint"),
        ({"log_frequency": "5"}, "log_frequency"), ({"trace_mode": "triton"}, "opentelemetry"), ({"y": 1}, "'y'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("model", ["", "a"])
def test_refused_changes_of_traces_change_nothing(adjust: Adjust, model: str, given: Any, part: str) -> None:
    before = adjust.trace_settings(model)
    with pytest.raises(GatewayError, match=part):
        adjust.change_trace(model, {"trace_rate": 7, **given})
    assert adjust.trace_settings(model) == before


def test_traces_without_an_endpoint() -> None:
    log = Log(Logs(), io.StringIO())
    adjust = Adjust(log, None)
    assert adjust.trace_settings("")["trace_level"] == ["OFF"]
    with pytest.raises(GatewayError, match=r"traces\.endpoint"):
        adjust.change_trace("", {"trace_level": "TIMESTAMPS"})
    log.close()


@contextlib.contextmanager
def _clients(there: Live) -> Iterator[tuple[Any, Any]]:
    """NVIDIA's clients over HTTP and gRPC."""
    with (
        listening(there) as address,
        contextlib.closing(http.InferenceServerClient(there.address.removeprefix("http://"))) as one,
        contextlib.closing(grpc.InferenceServerClient(address)) as other,
    ):
        yield one, other


def test_with_tritons_clients(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, traces__endpoint="http://127.0.0.1:9/v1/traces",
              traces__share=1.0) as there, _clients(there) as (one, other):  # fmt: skip
        assert {"logging", "trace"} <= set(one.get_server_metadata()["extensions"])
        assert one.get_log_settings()["log_info"] is True
        found = one.update_log_settings({"log_info": False, "log_requests": 1})
        assert found["log_info"] is False and found["log_requests"] == 1
        settings = other.get_log_settings().settings
        assert settings["log_info"].bool_param is False and settings["log_warning"].bool_param is True
        assert settings["log_requests"].string_param == "1.0" and settings["log_format"].string_param == "ISO8601"
        settings = other.update_log_settings({"log_info": True, "log_verbose_level": 1}).settings
        assert settings["log_verbose_level"].uint32_param == 1 and one.get_log_settings()["log_verbose_level"] == 1
        other.update_log_settings({"log_verbose_level": None})
        assert one.get_log_settings()["log_verbose_level"] == 0
        assert one.update_trace_settings("m", {"trace_rate": "5"})["trace_rate"] == "5"
        assert other.get_trace_settings("m").settings["trace_rate"].value == ["5"]
        assert other.get_trace_settings().settings["trace_rate"].value == ["1"]
        assert other.update_trace_settings(settings={"trace_level": ["OFF"]}).settings["trace_level"].value == ["OFF"]
        assert one.get_trace_settings("m")["trace_level"] == ["OFF"]
        other.update_trace_settings("m", {"trace_rate": None})
        assert one.get_trace_settings("m")["trace_rate"] == "1"
        for client in (one, other):
            with pytest.raises(utils.InferenceServerException, match="log_file"):
                client.update_log_settings({"log_file": "/tmp/x"})
            with pytest.raises(utils.InferenceServerException, match="nobody"):
                client.get_trace_settings("nobody")
            with pytest.raises(utils.InferenceServerException, match="TENSORS"):
                client.update_trace_settings(settings={"trace_level": ["TENSORS"]})
        names = ("changeLogSettings", "changeTraceSettings", "LogSettings", "TraceSetting")
        there.gateway.log.close()
        assert all(name in there.log.getvalue() for name in names)


def test_requests_are_logged_from_the_change_on(tmp_path: Path) -> None:
    x = np.ones((1, 4), np.float32)
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there, Raw(there.port) as raw:
        for share, identity in ((1, "asked-1"), (0, "asked-2")):
            change = json.dumps({"log_requests": share}).encode()
            assert raw.ask(request("/v2/logging", change)).status == 200
            assert raw.ask(scaled_request(x, model="m", fields={"X-Request-ID": identity})).status == 200
        there.gateway.log.close()
        assert "asked-1" in there.log.getvalue() and "asked-2" not in there.log.getvalue()


def test_a_change_to_fewer_lines_is_logged(tmp_path: Path) -> None:
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there, Raw(there.port) as raw:
        assert raw.ask(request("/v2/logging", b'{"log_info": false, "log_warning": false}')).status == 200
        there.gateway.log.close()
        assert "log settings change" in there.log.getvalue() and "lowest=error" in there.log.getvalue()


def test_traces_off_record_nothing(tmp_path: Path) -> None:
    """Not even for callers that ask for it; on again, they are recorded."""
    parent = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    x = np.ones((1, 4), np.float32)
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, traces__endpoint="http://127.0.0.1:9/v1/traces") as there:
        recorded: list[str] = []
        assert there.gateway.tracer is not None
        there.gateway.tracer.record = lambda context, *_: recorded.append(context.trace)  # type: ignore[method-assign]
        with Raw(there.port) as raw:
            for level, count in (("OFF", 0), ("TIMESTAMPS", 1)):
                change = json.dumps({"trace_level": level}).encode()
                assert raw.ask(request("/v2/models/m/trace/setting", change)).status == 200
                assert raw.ask(scaled_request(x, model="m", fields=parent)).status == 200
                assert recorded == ["1" * 32] * count


def test_who_may_change_them(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    asks, some, every = (
        {"Authorization": f"Bearer {tokens.add(file, name, scopes, models=models)}"}
        for name, scopes, models in (
            ("asks", ["infer"], ["*"]), ("some", ["manage"], ["m"]), ("every", ["manage"], ["*"]),
        )
    )  # fmt: skip
    told = {"access__tokens": str(file), "access__management": "token"}
    with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, **told) as there, Raw(there.port) as raw:

        def status(path: str, fields: dict[str, str]) -> int:
            return raw.ask(request(path, b"{}", fields)).status

        for path in ("/v2/logging", "/v2/trace/setting", "/v2/models/m/trace/setting"):
            assert [status(path, who) for who in ({}, asks, every)] == [401, 403, 200]
        assert [status(path, some) for path in ("/v2/logging", "/v2/trace/setting")] == [403, 403]
        assert status("/v2/models/m/trace/setting", some) == 200
        assert status("/v2/models/other/trace/setting", some) == 403


def test_asyncio_client(gateway: Live) -> None:
    aio = pytest.importorskip("tritonclient.http.aio")

    async def run() -> None:
        async with aio.InferenceServerClient(gateway.address.removeprefix("http://")) as client:
            assert (await client.get_log_settings())["log_error"] is True
            assert (await client.get_trace_settings("simple"))["trace_level"] == ["OFF"]

    asyncio.run(run())
