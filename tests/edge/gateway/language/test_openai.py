"""OpenAI's own client against a gateway with a small language model."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from edge.gateway.language.host import Ticket
from lite_runtime.errors import MissingExtraError
from tests.edge.gateway.live import Live, live
from tests.language.talking import TEMPLATE, talking, talking_bundle
from tests.waiting import until

PROMPTS = [
    "The cat", "In the end", "Once upon a time there was", "x", "the other thing is the answer " * 6, "Ünïcode ✓",
]  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = tmp_path_factory.mktemp("language")
    (folder / "tiny.mslite").write_bytes(talking_bundle())
    with live({"tiny": folder / "tiny.mslite"}) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as made:
        yield made


def host(served: Live, name: str = "tiny") -> Any:
    return next(s for s in served.gateway.repository.served() if s.name == name).language


def alone(prompt: str, **options: Any) -> str:
    return "".join(piece.text for piece in talking(threads=1).generate(prompt, **options))


def test_models_are_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_completion_is_what_the_model_says(client: openai.OpenAI) -> None:
    found = client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=20, temperature=0)
    assert found.choices[0].text == alone(PROMPTS[0], max_tokens=20)
    assert found.choices[0].finish_reason in ("stop", "length")
    assert found.usage is not None and found.usage.prompt_tokens == len(talking().tokens(PROMPTS[0]))


def test_streams_are_the_same_text(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "seed": 5}
    whole = client.chat.completions.create(**asked, max_completion_tokens=30)
    events = [*client.chat.completions.create(
        **asked, max_tokens=30, stream=True, stream_options={"include_usage": True},
    )]  # fmt: skip
    text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
    assert text == whole.choices[0].message.content
    assert len(events) > 3 and events[0].choices[0].delta.role == "assistant"
    assert events[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert events[-1].usage is not None and whole.usage is not None
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}])
def test_many_clients_at_once_get_what_they_would_get_alone(
    client: openai.OpenAI, served: Live, options: dict[str, Any]
) -> None:
    def ask(prompt: str) -> str:
        return client.completions.create(model="tiny", prompt=prompt, max_tokens=40, **options).choices[0].text

    want = [alone(prompt, max_tokens=40, **options) for prompt in PROMPTS]
    runs: list[int] = []
    engine, plain = host(served).engine, host(served).engine.run
    engine.run = lambda parts, **told: (runs.append(len(parts)), plain(parts, **told))[1]
    try:
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert [*pool.map(ask, PROMPTS)] == want
    finally:
        engine.run = plain
    assert max(runs) > 1  # several texts in one run


def test_choices_share_a_prompt_and_differ(client: openai.OpenAI) -> None:
    found = client.completions.create(model="tiny", prompt=PROMPTS[4], max_tokens=12, n=4, seed=3)
    want = [alone(PROMPTS[4], max_tokens=12, temperature=1.0, seed=3 + i) for i in range(4)]
    assert [choice.text for choice in found.choices] == want and len(set(want)) > 1
    several = client.completions.create(model="tiny", prompt=["The cat", "x"], max_tokens=5, n=2, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert [c.text for c in several.choices] == [alone(p, max_tokens=5) for p in ("The cat", "The cat", "x", "x")]


def test_prefixes_are_reused(client: openai.OpenAI) -> None:
    prompt = "A prompt which nobody else has sent, and which is rather long. " * 2
    first = client.completions.create(model="tiny", prompt=prompt, max_tokens=4, temperature=0)
    again = client.completions.create(model="tiny", prompt=prompt + "And more.", max_tokens=4, temperature=0)
    assert first.usage is not None and again.usage is not None and again.usage.prompt_tokens_details is not None
    assert again.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens
    assert again.choices[0].text == alone(prompt + "And more.", max_tokens=4)


def test_stop_texts_and_tokens_as_prompt(client: openai.OpenAI) -> None:
    whole = alone("The cat", max_tokens=40)
    stop = whole[5:8]
    found = client.completions.create(model="tiny", prompt="The cat", max_tokens=40, temperature=0, stop=[stop, "@@@@"])
    assert found.choices[0].text == whole[: whole.index(stop)] and found.choices[0].finish_reason == "stop"
    ids = talking().tokens("The cat")
    same = client.completions.create(model="tiny", prompt=ids, max_tokens=40, temperature=0)
    assert same.choices[0].text == whole


def test_logarithms_of_probabilities(client: openai.OpenAI) -> None:
    pieces = [*talking().generate("The cat", max_tokens=6, logprobs=3)]
    want = [one for piece in pieces for one in piece.logprobs]
    found = client.completions.create(model="tiny", prompt="The cat", max_tokens=6, temperature=0, logprobs=3)
    told = found.choices[0].logprobs
    assert told is not None and told.token_logprobs is not None and told.top_logprobs is not None
    assert told.token_logprobs == pytest.approx([one.value for one in want], abs=1e-3)
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    chat = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2, seed=1)
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs is not None else None
    assert content is not None and all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in content)
    text = b"".join(bytes(one.bytes or ()) for one in content)
    assert chat.choices[0].message.content == text.decode("utf-8", "replace")


def test_answers_of_a_form(client: openai.OpenAI) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}], response_format=form, max_tokens=60, seed=1
    )
    assert json.loads(found.choices[0].message.content or "")["a"] in (1, 2)


def test_calls_of_tools(tmp_path: Path) -> None:
    """The answer is kept to a call by a regular expression; the template shows the tools."""
    pytest.importorskip("llguidance")
    template = "{% for t in tools or [] %}{{ t.function.name }} <tool_call>{% endfor %}" + TEMPLATE
    (tmp_path / "tiny.mslite").write_bytes(talking_bundle(template=template))
    tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
    form = {"type": "regex", "regex": r'<tool_call>\{"name": "add", "arguments": \{"a": [1-9]\}\}</tool_call>'}
    asked: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [tool],
                             "extra_body": {"response_format": form}, "max_tokens": 200, "seed": 1}  # fmt: skip
    with (
        live({"tiny": tmp_path / "tiny.mslite"}) as served,
        openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client,
    ):
        (choice,) = client.chat.completions.create(**asked).choices
        assert choice.finish_reason == "tool_calls" and choice.message.tool_calls and choice.message.content is None
        called: Any = choice.message.tool_calls[0]
        assert called.function.name == "add" and json.loads(called.function.arguments)["a"] in range(1, 10)
        *_, last = client.chat.completions.create(**asked, stream=True)
        assert last.choices[0].delta.tool_calls and last.choices[0].finish_reason == "tool_calls"
        told = [*asked["messages"], choice.message.to_dict(), {"role": "tool", "tool_call_id": "x", "content": "3"}]
        plain = client.chat.completions.create(model="tiny", messages=told, max_tokens=3)
        assert plain.choices[0].finish_reason in ("stop", "length")
        with pytest.raises(openai.BadRequestError, match=r"tools\[0\]"):
            client.chat.completions.create(**{**asked, "tools": [{"type": "web"}]})


@pytest.mark.parametrize(
    ("options", "parameter", "code"),
    [
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"prompt": "a", "temperature": 9}, "temperature", "invalid_value"),
        ({"prompt": "a", "extra_body": {"wishes": 3}}, "wishes", "unknown_parameter"),
        ({"prompt": "a", "echo": True}, "echo", "invalid_value"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"prompt": "a", "logit_bias": {"999": 1}}, "logit_bias", "invalid_value"),
        ({"prompt": "a", "stop": [""]}, "stop", "invalid_value"),
        ({"prompt": [[3, 999]]}, "prompt", "invalid_value"),
        ({"prompt": "a" * 300_000}, "prompt", "context_length_exceeded"),
        ({"prompt": "a" * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": "a", "extra_body": {"stream_options": {"include_usage": True}}}, "stream_options", "invalid_value"),
    ],
)
def test_wrong_requests(client: openai.OpenAI, options: dict[str, Any], parameter: str, code: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="tiny", **options)
    assert (error.value.param, error.value.code) == (parameter, code)
    assert isinstance(error.value.body, dict) and parameter in error.value.body["message"]


def test_wrong_messages_and_models(client: openai.OpenAI) -> None:
    wrong: list[Any] = [
        [{"role": "king", "content": "a"}], [{"role": "user"}], [{"role": "user", "content": [{"type": "image_url"}]}],
    ]  # fmt: skip
    for messages in wrong:
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\]"):
            client.chat.completions.create(model="tiny", messages=messages)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="nobody", prompt="a")


def test_a_stream_that_is_closed_frees_its_pages(client: openai.OpenAI, served: Live) -> None:
    stream = client.completions.create(model="tiny", prompt="The cat", max_tokens=450, stream=True, seed=0,
                                       logit_bias={"0": -100, "2": -100})  # fmt: skip
    next(iter(stream))
    assert host(served).figures()["running"] == 1
    stream.close()
    until(lambda: host(served).figures()["running"] == 0)
    until(lambda: served.gateway.under_way == 0)


def test_metrics_and_the_open_inference_protocol(client: openai.OpenAI, served: Live) -> None:
    import urllib.error
    import urllib.request

    client.completions.create(model="tiny", prompt="The cat", max_tokens=3, temperature=0)
    text = urllib.request.urlopen(f"{served.address}/metrics").read().decode()
    numbers = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    labels = '{model="tiny",version="1"}'
    for name in ("prompt_tokens_total", "generated_tokens_total", "free_pages", "first_token_seconds_count"):
        assert numbers[f"msedge_language_{name}{labels}"] > 0
    assert numbers[f"nv_inference_request_success{labels}"] > 0
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{served.address}/v2/models/tiny/infer", data=b'{"inputs": []}')
    assert error.value.code == 400 and b"/v1/chat/completions" in error.value.read()


@contextmanager
def limited(folder: Path, **settings: Any) -> Iterator[tuple[Live, openai.OpenAI]]:
    """A gateway of its own, and a client."""
    (folder / "tiny.mslite").write_bytes(talking_bundle())
    with (
        live({"tiny": folder / "tiny.mslite"}, **settings) as served,
        openai.OpenAI(base_url=f"{served.address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield served, client


def test_texts_interrupt_one_another(tmp_path: Path) -> None:
    """Caches of 12 pages: all texts end as they would alone."""
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0, "logit_bias": {"0": -100, "2": -100}}
    with limited(tmp_path, language__tokens=12 * 16) as (served, client):
        def ask(prompt: str) -> str:
            return client.completions.create(model="tiny", prompt=prompt, **options).choices[0].text

        prompts = [*PROMPTS[:4], *(f"{prompt}!" for prompt in PROMPTS[:4])]
        want = [alone(prompt, max_tokens=60, logit_bias={0: -100.0, 2: -100.0}) for prompt in prompts]
        with ThreadPoolExecutor(len(prompts)) as pool:
            assert [*pool.map(ask, prompts)] == want
        assert host(served).figures()["interrupted_total"] > 0
        with pytest.raises(openai.BadRequestError, match=r"language\.tokens"):
            client.completions.create(model="tiny", prompt="a" * 300)


def test_too_many_requests_are_refused(tmp_path: Path) -> None:
    with limited(tmp_path, language__texts=1, batching__queue_requests=1) as (served, client):
        stream = client.completions.create(
            model="tiny", prompt="x", stream=True, max_tokens=480, logit_bias={"0": -100, "2": -100}
        )
        next(iter(stream))
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.completions.create, model="tiny", prompt="y", max_tokens=1)
            until(lambda: host(served).figures()["waiting"] == 1)
            with pytest.raises(openai.RateLimitError) as error:
                client.completions.create(model="tiny", prompt="z")
            assert int(error.value.response.headers["retry-after"]) >= 1
            stream.close()
            assert waiting.result().choices[0].finish_reason


def test_tokens_are_asked_for(tmp_path: Path) -> None:
    from edge.gateway.access.tokens import add

    (tmp_path / "tiny.mslite").write_bytes(talking_bundle())
    file = tmp_path / "tokens.json"
    key, other = add(file, "someone", ["infer"], models=["tiny"]), add(file, "other", ["infer"], models=["else"])
    with live({"tiny": tmp_path / "tiny.mslite"}, access__tokens=str(file)) as served:
        def ask(key: str) -> Any:
            with openai.OpenAI(base_url=f"{served.address}/v1", api_key=key, max_retries=0) as client:
                return client.completions.create(model="tiny", prompt="a", max_tokens=1)

        assert ask(key).choices
        with pytest.raises(openai.AuthenticationError):
            ask("wrong")
        with pytest.raises(openai.PermissionDeniedError):
            ask(other)


def test_accepted_requests_are_answered_at_the_end(tmp_path: Path) -> None:
    with limited(tmp_path) as (served, client):
        served.gateway.log.share, served.gateway.watching = 1.0, True
        stream = client.completions.create(
            model="tiny", prompt="x", stream=True, max_tokens=300, logit_bias={"0": -100, "2": -100}
        )
        events = iter(stream)
        next(events)

        async def leave() -> bool:
            return all(await asyncio.gather(served.gateway.drain(30), served.server.drain(30)))

        leaving = asyncio.run_coroutine_threadsafe(leave(), served.loop)
        assert [*events][-1].choices[0].finish_reason == "length"
        assert leaving.result(60)
        with pytest.raises((openai.InternalServerError, openai.APIConnectionError)):
            client.completions.create(model="tiny", prompt="x")
    assert "/v1/completions" in served.log.getvalue()


def test_a_request_waits_no_longer_than_allowed(tmp_path: Path) -> None:
    with limited(tmp_path, language__texts=1) as (served, client):
        stream = client.completions.create(
            model="tiny", prompt="x", stream=True, max_tokens=490, logit_bias={"0": -100, "2": -100}
        )
        next(iter(stream))
        there, news = host(served), list[Any]()
        requests = [there.model.request(there.model.tokens("y"), max_tokens=1)]
        there.pace.answer, there._wait = 1.0, lambda ticket: 0.0  # the forecast is wrong
        there.submit(Ticket(requests, news.extend, deadline=time.perf_counter() + 0.01))
        until(lambda: news)
        assert news[0].error.status == 504
        stream.close()


def test_without_jinja_chats_are_refused(client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: Any) -> Any:
        raise MissingExtraError("jinja2", "language", "it renders the templates of chats", ["jinja2"])

    monkeypatch.setattr("edge.gateway.language.wish.of_messages", missing)
    with pytest.raises(openai.InternalServerError, match=r"pip install .*jinja2") as error:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
    assert error.value.status_code == 501
