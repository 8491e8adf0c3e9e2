"""What holds for every call: access, deadlines, cancellation, limits, codes, metadata."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edge.gateway.access import tokens
from edge.gateway.exchange import Answer, Ask
from edge.gateway.grpc.calls import _address, code_of
from edge.gateway.grpc.messages import message
from edge.gateway.job import Job
from edge.gateway.operate.logs import Log
from edge.gateway.operate.settings import Logs
from tests.edge.gateway.grpc.serving import call, caller, channel, listening, simple_request
from tests.edge.gateway.live import Live, live, scaled, simple
from tests.waiting import until

A = np.arange(16, dtype=np.int32)[None]


class Held:
    """Takes inferences in place of a gateway, and answers none."""

    def __init__(self) -> None:
        self.asks: list[Ask] = []
        self.replies: list[Callable[[Answer], None]] = []
        self.cancelled = 0

    def infer(self, ask: Ask, reply: Callable[[Answer], None]) -> Callable[[], None]:
        self.asks.append(ask)
        self.replies.append(reply)

        def cancel() -> None:
            self.cancelled += 1

        return cancel


@pytest.fixture
def held(gateway: Live, monkeypatch: pytest.MonkeyPatch) -> Held:
    made = Held()
    monkeypatch.setattr(gateway.gateway, "infer", made.infer)
    return made


def refused(address: str, method: str, request: Any, **how: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        call(address, method, request, **how)
    return caught.value


def trailing(error: Any) -> dict[str, str]:
    return {key: value for key, value in error.trailing_metadata() or ()}


class TestCodes:
    @pytest.mark.parametrize(
        ("status", "code"),
        [(200, "OK"), (400, "INVALID_ARGUMENT"), (401, "UNAUTHENTICATED"), (403, "PERMISSION_DENIED"),
         (404, "NOT_FOUND"), (408, "DEADLINE_EXCEEDED"), (413, "RESOURCE_EXHAUSTED"), (429, "RESOURCE_EXHAUSTED"),
         (499, "CANCELLED"), (500, "INTERNAL"), (501, "UNIMPLEMENTED"), (503, "UNAVAILABLE"),
         (504, "DEADLINE_EXCEEDED"), (599, "INTERNAL")],
    )  # fmt: skip
    def test_codes_are_tritons(self, status: int, code: str) -> None:
        assert code_of(status).name == code

    @pytest.mark.parametrize(
        ("peer", "address"),
        [("ipv4:127.0.0.1:50", "127.0.0.1"), ("ipv6:%5B::1%5D:50", "::1"), ("ipv6:[fe80::1]:50", "fe80::1"),
         ("unix:/tmp/x", "unix:/tmp/x"), ("", "unknown")],
    )  # fmt: skip
    def test_addresses_of_peers(self, peer: str, address: str) -> None:
        """None is the empty text, which would be a client of this machine."""
        assert _address(peer) == (address, 50 if peer.startswith("ip") else 0)


class TestAnswers:
    def test_the_requests_id_is_returned(self, address: str) -> None:
        with channel(address) as made:
            data = simple_request(A, A).SerializeToString()
            _, told = caller(made, "ModelInfer").with_call(data, metadata=[("x-request-id", "mine-7")], timeout=60)
            assert trailing(told)["x-request-id"] == "mine-7"
        error = refused(address, "ModelInfer", message("ModelInferRequest")(model_name="nobody"))
        assert error.code() == grpc.StatusCode.NOT_FOUND and trailing(error)["x-request-id"]

    def test_unknown_methods(self, address: str) -> None:
        with channel(address) as made, pytest.raises(grpc.RpcError) as caught:
            caller(made, "Nonsense")(b"", timeout=60)
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED

    def test_an_internal_error_is_logged_and_not_shown(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("a secret")

        with live({"simple": simple(tmp_path / "simple.mslite")}) as there, listening(there) as to:
            monkeypatch.setattr(there.gateway.repository, "index", fail)
            monkeypatch.setattr(there.gateway, "infer", fail)
            for method, request in (("RepositoryIndex", b""), ("ModelInfer", simple_request(A, A))):
                error = refused(to, method, request)
                assert error.code() == grpc.StatusCode.INTERNAL and "secret" not in str(error.details())
            until(lambda: "a secret" in there.log.getvalue())


class TestDeadlines:
    def test_the_clients_deadline_is_the_jobs(self, held: Held, address: str) -> None:
        error = None
        begun = time.perf_counter()
        with channel(address) as made:
            with pytest.raises(grpc.RpcError) as caught:
                caller(made, "ModelInfer")(simple_request(A, A).SerializeToString(), timeout=0.5)
            error = caught.value
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        (ask,) = held.asks
        assert 0.2 < ask.deadline - begun < 0.6
        until(lambda: held.cancelled == 1)

    def test_it_reaches_the_scheduler(self, gateway: Live, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        jobs: list[Job] = []
        submit = gateway.gateway.scheduler.submit
        monkeypatch.setattr(
            gateway.gateway.scheduler, "submit", lambda job, runner: (jobs.append(job), submit(job, runner))
        )
        now = time.perf_counter()
        with channel(address) as made:
            caller(made, "ModelInfer")(simple_request(A, A).SerializeToString(), timeout=9)
            request = simple_request(A, A)
            request.parameters["timeout"].int64_param = 2_000_000
            caller(made, "ModelInfer")(request.SerializeToString(), timeout=9)
        assert [round(job.deadline - now) for job in jobs] == [9, 2]

    def test_a_client_that_leaves_cancels_its_request(self, held: Held, address: str) -> None:
        with channel(address) as made:
            waiting = caller(made, "ModelInfer").future(simple_request(A, A).SerializeToString())
            until(lambda: len(held.asks) == 1)
            waiting.cancel()
            until(lambda: held.cancelled == 1)

    def test_a_closed_connection_cancels_its_requests(self, held: Held, address: str) -> None:
        with channel(address) as made:
            data = simple_request(A, A).SerializeToString()
            waiting = [caller(made, "ModelInfer").future(data) for _ in range(3)]
            until(lambda: len(held.asks) == 3)
        until(lambda: held.cancelled == 3)
        assert all(one.code() == grpc.StatusCode.CANCELLED for one in waiting)


class TestAccess:
    @pytest.fixture
    def locked(self, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str], Live]]:
        folder = tmp_path_factory.mktemp("locked")
        file = folder / "tokens.json"
        made = {scope: tokens.add(file, scope, [scope]) for scope in ("infer", "manage", "metrics")}
        told = {"access__tokens": str(file), "access__management": "token", "access__metrics": "token"}
        with live({"simple": simple(folder / "simple.mslite")}, **told) as there, listening(there) as found:
            yield found, made, there

    CALLS = (
        ("ModelInfer", simple_request(A, A), "infer"),
        ("ModelMetadata", message("ModelMetadataRequest")(name="simple"), "infer"),
        ("ModelConfig", message("ModelConfigRequest")(name="simple"), "infer"),
        ("RepositoryIndex", b"", "infer"),
        ("ModelStatistics", b"", "metrics"),
        ("RepositoryModelLoad", message("RepositoryModelLoadRequest")(model_name="simple"), "manage"),
        ("ServerLive", b"", ""),
        ("ServerReady", b"", ""),
        ("ServerMetadata", b"", ""),
        ("ModelReady", message("ModelReadyRequest")(name="simple"), ""),
    )

    @pytest.mark.parametrize(("method", "request_", "scope"), CALLS, ids=[one[0] for one in CALLS])
    def test_each_call_needs_its_scope(
        self, locked: tuple[str, dict[str, str], Live], method: str, request_: Any, scope: str
    ) -> None:
        address, made, _ = locked
        if not scope:
            call(address, method, request_)
            return
        assert refused(address, method, request_).code() == grpc.StatusCode.UNAUTHENTICATED
        for name, token in made.items():
            shown = [("authorization", f"Bearer {token}")]
            if name == scope:
                call(address, method, request_, metadata=shown)
            else:
                error = refused(address, method, request_, metadata=shown)
                assert error.code() == grpc.StatusCode.PERMISSION_DENIED

    def test_without_a_token_no_message_is_read(self, locked: tuple[str, dict[str, str], Live]) -> None:
        """The refusal comes while the client still sends."""
        address, _, there = locked
        before = there.gateway.statistics.refused["infer", 401]
        with channel(address) as made:
            stop = threading.Event()

            def never() -> Iterator[bytes]:
                stop.wait(300)
                yield b""

            with pytest.raises(grpc.RpcError) as caught:
                made.stream_unary("/inference.GRPCInferenceService/ModelInfer")(never(), timeout=300)
            stop.set()
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        assert there.gateway.statistics.refused["infer", 401] == before + 1

    def test_a_stream_needs_a_token(self, locked: tuple[str, dict[str, str], Live]) -> None:
        address, made, _ = locked
        with channel(address) as through:
            stream = through.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            data = simple_request(A, A).SerializeToString()
            with pytest.raises(grpc.RpcError) as caught:
                list(stream(iter([data]), timeout=60))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            shown = [("authorization", f"Bearer {made['infer']}")]
            assert len(list(stream(iter([data]), timeout=60, metadata=shown))) == 1

    def test_guessed_tokens_are_limited(self, tmp_path: Path) -> None:
        file = tmp_path / "tokens.json"
        tokens.add(file, "one", ["infer"])
        with live({"simple": simple(tmp_path / "s.mslite")}, access__tokens=str(file)) as there, listening(there) as to:
            codes = [refused(to, "ModelInfer", b"", metadata=[("authorization", f"Bearer {k}")]) for k in range(12)]
            assert codes[0].code() == grpc.StatusCode.UNAUTHENTICATED
            assert codes[-1].code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert int(trailing(codes[-1])["grpc-retry-pushback-ms"]) >= 1000

    def test_management_is_for_this_machine(self, address: str) -> None:
        request = message("RepositoryModelLoadRequest")(model_name="simple")
        call(address, "RepositoryModelLoad", request)
        for field in (("x-forwarded-for", "10.1.1.1"), ("forwarded", "for=10.1.1.1"), ("origin", "https://evil.example")):
            error = refused(address, "RepositoryModelLoad", request, metadata=[field])
            assert error.code() == grpc.StatusCode.PERMISSION_DENIED


class TestLimits:
    def test_messages_and_replies_have_limits(self, tmp_path: Path) -> None:
        made = scaled(tmp_path / "m.mslite", 2.0, size=1 << 16)
        told = {"limits__body": 600_000, "limits__reply": 300_000}
        with live({"m": made}, **told) as there, listening(there) as to:
            for rows, code in ((1, None), (2, "RESOURCE_EXHAUSTED"), (4, "RESOURCE_EXHAUSTED")):
                x = np.ones((rows, 1 << 16), np.float32)
                request = message("ModelInferRequest")(model_name="m", raw_input_contents=[x.tobytes()])
                request.inputs.add(name="x", datatype="FP32", shape=x.shape)
                if code is None:
                    reply = call(to, "ModelInfer", request)
                    assert np.frombuffer(reply.raw_output_contents[0], np.float32).sum() == 2 * x.size
                else:
                    error = refused(to, "ModelInfer", request)
                    assert error.code().name == code
                    assert ("reply is larger" if rows == 2 else "larger than max") in error.details()

    def test_a_compressed_message_is_measured_decompressed(self, tmp_path: Path) -> None:
        with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, limits__body=10_000) as there, listening(there) as to:
            error = refused(to, "ModelInfer", bytes(1 << 20), compression=grpc.Compression.Gzip)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED

    def test_a_message_that_does_not_come_is_not_waited_for(self, tmp_path: Path) -> None:
        with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, limits__body_seconds=0.3) as there, listening(there) as to:
            stop = threading.Event()

            def never() -> Iterator[bytes]:
                stop.wait(300)
                yield b""

            with channel(to) as made:
                for method in ("ModelInfer", "RepositoryIndex"):
                    with pytest.raises(grpc.RpcError, match=r"not received within 0\.3 s"):
                        made.stream_unary(f"/inference.GRPCInferenceService/{method}")(never(), timeout=60)
            stop.set()

    @pytest.mark.parametrize("method", ["ModelInfer", "RepositoryIndex", "ModelStreamInfer"])
    def test_when_memory_is_short_messages_that_do_not_come_give_way(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        """Those that wait, and none that came just now."""
        with live({"m": scaled(tmp_path / "m.mslite", 2.0)}) as there:
            short = threading.Event()
            monkeypatch.setattr(there.gateway, "short_of_memory", short.is_set)
            stop = threading.Event()

            def never() -> Iterator[bytes]:
                stop.wait(300)
                yield b""

            with listening(there) as to, channel(to) as made, channel(to) as other:
                call = (made.stream_stream if "Stream" in method else made.stream_unary)
                waiting = call(f"/inference.GRPCInferenceService/{method}")
                calls = [waiting(never(), timeout=60) if "Stream" in method else waiting.future(never(), timeout=60)
                         for _ in range(3)]  # fmt: skip
                caller(other, "ServerLive")(b"", timeout=60)
                assert there.gateway.evicted()["memory"] == 0
                short.set()
                until(lambda: there.gateway.evicted()["memory"] == 3)
                for one in calls:
                    assert one.code() == grpc.StatusCode.UNAVAILABLE and "short of memory" in one.details()
                caller(other, "ServerLive")(b"", timeout=60)
                stop.set()

    def test_no_message_at_all(self, address: str) -> None:
        with channel(address) as made, pytest.raises(grpc.RpcError, match="expected one message"):
            made.stream_unary("/inference.GRPCInferenceService/ModelInfer")(iter(()), timeout=60)

    def test_calls_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, grpc__calls=2) as there:
            held = Held()
            monkeypatch.setattr(there.gateway, "infer", held.infer)
            with listening(there) as to, channel(to) as one, channel(to) as other:
                data = simple_request(A, A).SerializeToString()
                waiting = [caller(one, "ModelInfer").future(data) for _ in range(2)]
                until(lambda: len(held.asks) == 2)
                with pytest.raises(grpc.RpcError) as caught:
                    caller(other, "ModelInfer")(data, timeout=60)
                assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
                assert not any(call_.done() for call_ in waiting)

    def test_connections_at_once(self, tmp_path: Path) -> None:
        served = live({"m": scaled(tmp_path / "m.mslite", 2.0)}, limits__connections=2)
        with served as there, listening(there) as to, channel(to) as one, channel(to) as other, channel(to) as third:
            for made in (one, other):
                caller(made, "ServerLive")(b"", timeout=60)
            with pytest.raises(grpc.RpcError) as caught:
                caller(third, "ServerLive")(b"", timeout=60)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

    def test_messages_share_one_memory_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        told = {"limits__body": 4096, "limits__bodies": 66_000, "access__proxies": ["127.0.0.1"]}
        with live({"m": scaled(tmp_path / "m.mslite", 2.0)}, **told) as there:
            held = Held()
            monkeypatch.setattr(there.gateway, "infer", held.infer)
            with listening(there) as to, channel(to) as made:
                request = message("ModelInferRequest")(model_name="m", raw_input_contents=[bytes(4000)])
                data = request.SerializeToString()
                waiting = [caller(made, "ModelInfer").future(data) for _ in range(17)]
                until(lambda: len(held.asks) == 16)
                until(lambda: any(one.done() for one in waiting))
                (error,) = [one.exception() for one in waiting if one.done()]
                assert error.code() == grpc.StatusCode.UNAVAILABLE and "memory" in error.details()
                for one in waiting:
                    one.cancel()
                until(lambda: held.cancelled == 16)
                asked = len(held.asks)
                again = caller(made, "ModelInfer").future(data)
                until(lambda: len(held.asks) == asked + 1)
                again.cancel()


def test_requests_are_logged_and_counted(tmp_path: Path) -> None:
    with live({"simple": simple(tmp_path / "simple.mslite")}, logs__requests=1.0) as there, listening(there) as to:
        written = io.StringIO()
        there.gateway.log = Log(Logs(requests=1.0), written)
        call(to, "ModelInfer", simple_request(A, A), metadata=[("x-request-id", "seen")])
        line = "id=seen method=GRPC path=/inference.GRPCInferenceService/ModelInfer/simple status=200"
        until(lambda: line in written.getvalue())
        assert there.gateway.model_statistics("simple", "1")["model_stats"][0]["inference_count"] == 1
        refused(to, "ModelInfer", message("ModelInferRequest")(model_name="nobody"))
        assert there.gateway.statistics.refused["infer", 404] == 1
        refused(to, "ModelInfer", b"\x0a\xff")
        assert there.gateway.statistics.refused["infer", 400] == 1
        assert there.gateway.under_way == 0


def test_a_long_text_fits_into_the_metadata(address: str) -> None:
    """Names of any length and letters, repeated in the error."""
    for name in ("x" * 100_000, "é" * 5000, "\n" * 3000):
        error = refused(address, "ModelInfer", message("ModelInferRequest")(model_name=name))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        error = refused(address, "ModelInfer", simple_request(A, A, model_version=name))
        assert error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
