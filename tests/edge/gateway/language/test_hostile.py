"""Requests that are wrong, huge or left alone, against a gateway with a small language model."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.language.calls import calls_in
from lite_runtime.language import constraints
from tests.edge.gateway.live import Live, live
from tests.language.talking import talking, talking_bundle
from tests.language.tiny import Sizes
from tests.waiting import until

ENDLESS: dict[str, Any] = {"logit_bias": {"0": -100, "2": -100}, "max_tokens": 450}
HI = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("language")
    (folder / "tiny.mslite").write_bytes(talking_bundle())
    with live({"tiny": folder / "tiny.mslite"}) as made:
        yield made


def host(served: Live) -> Any:
    return next(s for s in served.gateway.repository.served() if s.name == "tiny").language


def figures(served: Live) -> Any:
    return served.gateway.languages.figures("tiny", "1")


def post(served: Live, path: str, body: Any) -> tuple[int, Any]:
    """The status and the JSON of a reply."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    try:
        data = body if isinstance(body, bytes) else json.dumps({"model": "tiny", **body}).encode()
        connection.request("POST", f"/v1/{path}", data)
        reply = connection.getresponse()
        return reply.status, json.loads(reply.read())
    finally:
        connection.close()


def nested(depth: int) -> Any:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


LONG, DEEP = "x" * 1_000_000, nested(300)
TYPES: dict[str, list[Any]] = {
    "stream": [1, "true", [], DEEP], "n": [0, 17, 10**12, True, 1.0, "2"], "stop": [[], 5, {}, ["a", 3], [""],
    ["a"] * 65,
    LONG, [LONG], ["a"] * 100_000], "max_tokens": [0, -1, True, 2.5, "9", 1 << 40], "temperature": [-1, 2.1, "1",
    True, []],
    "top_p": [-0.1, 1.1, "x", False], "presence_penalty": [3, "0", []], "frequency_penalty": [-3, {}],
    "logit_bias": [[], "x", 5, DEEP, {"x": 1}, {"1": "y"}, {"1": 101}, {"1": True}, {"300": 1}, {"-1": 1}, {LONG: 1},
    dict.fromkeys(map(str, range(100_000)), 1)], "seed": ["1", 1.5, True, 1 << 63], "user": [5, [], {}],
    "top_k": [-1, 1.5,
    True], "min_p": [2, "x"], "repetition_penalty": [0, 1000, "x"], "stream_options": [[], "x",
    {"include_usage": True}],
    "response_format": [[], "json", {"type": LONG}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 3},
    {"type": "json_schema", "json_schema": {"schema": {"items": nested(300)}}}], "wish" + LONG[:90]: [1],
}  # fmt: skip
COMPLETION: dict[str, list[Any]] = {
    "prompt": [5, [], [[]], [True], ["a", 3], [1.5], {}, [[1, True]], [[5, 400]], ["a"] * 65, DEEP, LONG, [-1],
    [1 << 62]],
    "logprobs": [6, True, "1", -1], "echo": [True, "x"], "best_of": [2, True], "suffix": ["x", 5],
}  # fmt: skip
CHAT: dict[str, list[Any]] = {
    "messages": [[], {}, "x", [5], [{}], [{"role": 5, "content": "a"}], [{"role": "user"}], [{"role": "user",
    "content": 5}],
    [{"role": "user", "content": [{"type": "image_url", "text": "a"}]}], [{"role": "user", "content": ["a"]}],
    [{"role": "user", "content": "a", "name": 5}], [{"role": "tool", "content": "a", "tool_call_id": []}],
    [{"role": "user", "content": "a", "tool_calls": [{}]}], [{"role": "assistant", "tool_calls": 5}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 500 + "]" * 500}}]}],
    [{"role": "user", "content": "a", "more": DEEP}], DEEP, [{"role": "user", "content": LONG}]],
    "logprobs": [1, "x"], "top_logprobs": [21, True, 3], "max_completion_tokens": [0, True], "store": [True],
    "tools": [{}, [], [5], [{"type": "web"}], [{"type": "function", "function": []}], [{"type": "function", "function":
    {"name": 5}}], [{"type": "function", "function": {"name": "f", "parameters": DEEP}}],
    [{"type": "function", "function": {"name": "f", "parameters": nested(700)}}],
    [{"type": "function", "function": {"name": "f", "description": LONG}}]],
    "tool_choice": ["required", {}, DEEP], "parallel_tool_calls": [False], "modalities": [["audio"], "text"],
}  # fmt: skip
ROWS = [("completions", name) for name in {**TYPES, **COMPLETION}] + [
    ("chat/completions", name) for name in {**TYPES, **CHAT}
]


@pytest.mark.parametrize(("path", "name"), ROWS, ids=lambda part: part[:30])
def test_wrong_values_are_named(served: Live, path: str, name: str) -> None:
    own = COMPLETION if path == "completions" else CHAT
    plain: dict[str, Any] = {"prompt": "a"} if path == "completions" else {"messages": HI}
    for value in own.get(name) or TYPES[name]:
        status, found = post(served, path, {**plain, "max_tokens": 1, name: value})
        assert status == 400, (name, str(value)[:80], found)
        error = found["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
        assert error["param"] == name[:80], (str(value)[:80], error)
        assert len(error["message"]) < 1200


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b'"a"', b"\xff", b"{}", b'{"model": 5}', b'{"model": "tiny", "prompt": "\\ud800"}',
     b'{"model": "tiny", "prompt": "\xed\xa0\x80"}', b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
     b'{"model": "tiny", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"],
    ids=range(10),
)  # fmt: skip
def test_bodies_that_are_no_requests(served: Live, body: bytes) -> None:
    status, found = post(served, "completions", body)
    assert status == 400 and set(found["error"]) == {"message", "type", "param", "code"}


def test_values_that_are_right_beside_wrong_ones(served: Live) -> None:
    right = {"n": 16, "logit_bias": {str(i): -1.5 for i in range(300)}, "stop": ["a" * 1024] * 64, "max_tokens": 1,
             "stream_options": None, "user": "me"}  # fmt: skip
    status, found = post(served, "completions", {"prompt": "a", **right})
    assert status == 200 and len(found["choices"]) == 16
    tool = {"type": "function", "function": {"name": "f", "parameters": {"a": nested(20)}}}
    status, _ = post(served, "chat/completions", {"messages": HI, "tools": [tool], "max_tokens": 1})
    assert status == 200


def test_a_grammar_is_compiled_once_for_all_answers(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llguidance")
    made, plain = list[Any](), constraints.constraint
    monkeypatch.setattr(constraints, "constraint", lambda *given: made.append(given) or plain(*given))
    form = {"type": "regex", "regex": "[ab]{3}"}
    asked = {"prompt": ["a", "b", "c"], "n": 5, "max_tokens": 9, "response_format": form, "seed": 3}
    status, found = post(served, "completions", asked)
    assert status == 200 and len(made) == 1
    texts = [choice["text"] for choice in found["choices"]]
    assert len(texts) == 15 and all(len(text) == 3 and set(text) <= {"a", "b"} for text in texts)
    want = [
        "".join(piece.text for piece in talking().generate(p, response_format=form, temperature=1.0, seed=3 + i))
        for p in ("a", "b", "c")
        for i in range(5)
    ]
    assert texts == want


@pytest.mark.parametrize(
    "call",
    [
        '{"name": "\\ud800", "arguments": {}}',
        '{"name": "f", "arguments": {"a": "\\udfff"}}',
        '{"name": 5, "arguments": {}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": Infinity}}',
        '{"name": "f", "arguments": {"a": ' + "[" * 900 + "]" * 900 + "}}",
        '{"name": "f", "arguments": {"a": ' + "1" * 5000 + "}}",
    ],
    ids=range(7),
)
def test_calls_that_no_reply_can_hold_stay_text(call: str) -> None:
    text = f"<tool_call>{call}</tool_call>"
    found = calls_in(text, "<tool_call>")
    json.dumps(found.calls).encode()
    assert (found.text, found.calls) == (text, []) or "[" * 900 in found.calls[0]["function"]["arguments"]


def test_calls_are_found_wherever_they_stand() -> None:
    call = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    found = calls_in(f"a {call}b{call} c <tool_call>", "<tool_call>")
    assert (found.text, len(found.calls)) == ("a b c <tool_call>", 2)
    assert calls_in(f"</tool_call>{call}", "<tool_call>").text == "</tool_call>"
    text = "<tool_call>" * 200_000
    assert calls_in(text, "<tool_call>") == (text, [])  # takes minutes if each is looked for from its own place


def request_of(body: dict[str, Any], path: str = "completions") -> bytes:
    data = json.dumps({"model": "tiny", **body}).encode()
    return f"POST /v1/{path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def test_a_client_that_reads_late_gets_the_same_text_in_fewer_events(served: Live) -> None:
    """What waits for it is what was written, not an event for each token."""
    before = figures(served).generated
    asked = {"messages": HI, "n": 16, "stream": True, "logprobs": True, "top_logprobs": 20, "temperature": 0, **ENDLESS}
    asked["max_tokens"] = 400
    with socket.socket() as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        there.connect(("127.0.0.1", served.port))
        there.sendall(request_of(asked, "chat/completions"))
        until(lambda: figures(served).generated - before == 16 * 400)
        assert served.gateway.under_way == 1
        there.settimeout(60)
        data = b""
        while b"[DONE]" not in data[-200:]:
            data += there.recv(1 << 20)
    events = [json.loads(line[6:]) for line in data.split(b"\n") if line.startswith(b"data: {")]
    texts: dict[int, str] = {}
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["delta"]["content"]
    bias = {0: -100.0, 2: -100.0}
    want = "".join(piece.text for piece in talking().generate(messages=HI, max_tokens=400, logit_bias=bias))
    assert texts == dict.fromkeys(range(16), want) and len(events) < 16 * 400
    assert sum(len(event["choices"][0]["logprobs"]["content"]) for event in events) == 16 * 400
    until(lambda: served.gateway.under_way == 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_counted(served: Live, stream: bool) -> None:
    count, prompt = figures(served).generated, figures(served).prompt
    with socket.create_connection(("127.0.0.1", served.port)) as there:
        there.sendall(request_of({"prompt": "The cat", "stream": stream, **ENDLESS}))
        until(lambda: host(served).figures()["running"] == 1 and figures(served).generated > count)
    until(lambda: served.gateway.under_way == 0)
    until(lambda: host(served).figures()["running"] == 0)
    assert 0 < figures(served).generated - count <= 450
    assert figures(served).prompt - prompt == len(talking().tokens("The cat"))


def test_clients_that_leave_while_they_wait(tmp_path: Path) -> None:
    (tmp_path / "tiny.mslite").write_bytes(talking_bundle())
    with live({"tiny": tmp_path / "tiny.mslite"}, language__texts=1) as served:
        first, *others = (socket.create_connection(("127.0.0.1", served.port)) for _ in range(4))
        first.sendall(request_of({"prompt": "x", "stream": True, **ENDLESS}))
        until(lambda: host(served).figures()["running"] == 1)
        for other in others:
            other.sendall(request_of({"prompt": "y", **ENDLESS}))
        until(lambda: host(served).figures()["waiting"] == 3)
        for other in others:
            other.close()
        until(lambda: host(served).figures()["waiting"] == 0)
        until(lambda: served.gateway.under_way == 1)
        first.close()
        until(lambda: served.gateway.under_way == 0)
        until(lambda: host(served).figures()["running"] == 0)
        assert figures(served).prompt == 1


def test_a_client_that_leaves_while_its_prompt_is_read(served: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from edge.gateway.language import asking

    entered, go = threading.Event(), threading.Event()
    plain, form = asking.KINDS["/v1/completions"]

    def slow(*given: Any, **more: Any) -> Any:
        entered.set()
        go.wait(30)
        return plain(*given, **more)

    monkeypatch.setitem(asking.KINDS, "/v1/completions", (slow, form))
    prompt = figures(served).prompt
    with socket.create_connection(("127.0.0.1", served.port)) as there:
        there.sendall(request_of({"prompt": "The cat", **ENDLESS}))
        assert entered.wait(30)
    until(lambda: served.gateway.under_way == 0)
    go.set()
    assert host(served).figures()["running"] == 0 and figures(served).prompt == prompt


def test_a_shutdown_that_does_not_wait_ends_streams(tmp_path: Path) -> None:
    (tmp_path / "tiny.mslite").write_bytes(talking_bundle(Sizes(context=20_000)))
    with (
        live({"tiny": tmp_path / "tiny.mslite"}) as served,
        socket.create_connection(("127.0.0.1", served.port)) as there,
    ):
        there.sendall(request_of({"prompt": "x", "stream": True, "n": 8, **ENDLESS, "max_tokens": 19_000}))
        until(lambda: figures(served).generated > 16)
        thread = host(served)._thread

        async def leave() -> bool:
            done = all(await asyncio.gather(served.gateway.drain(0), served.server.drain(0)))
            await served.server.stop()
            return done

        assert served.call(leave()) is False
        until(lambda: served.gateway.under_way == 0)
        there.settimeout(30)
        data = b""
        while more := there.recv(1 << 20):
            data += more
        assert b"[DONE]" not in data
    assert not thread.is_alive()


def test_an_internal_error_of_the_thread_leaves_nobody_waiting(tmp_path: Path) -> None:
    (tmp_path / "tiny.mslite").write_bytes(talking_bundle())
    with live({"tiny": tmp_path / "tiny.mslite"}) as served:
        there = host(served)

        def broken(beside: int) -> Any:
            raise ZeroDivisionError("a bug")

        there._scheduler.step = broken
        status, found = post(served, "completions", {"prompt": "a"})
        assert status == 500 and "a bug" not in found["error"]["message"]
        status, found = post(served, "completions", {"prompt": "a"})
        assert status == 503 and "stopped after an internal error" in found["error"]["message"]
        until(lambda: served.gateway.under_way == 0 and "ZeroDivisionError" in served.log.getvalue())
