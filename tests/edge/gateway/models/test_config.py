from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.gateway.errors import GatewayError
from edge.gateway.models.config import ModelConfig, Policy, Shadowing, parse_config, parse_override
from edge.gateway.models.names import check_name, is_name, version_of

WHOLE = """
versions = {latest = 2}
labels = {stable = 3, canary = "latest"}
split = {stable = 0.9, canary = 0.1}
shadow = {version = "canary", fraction = 0.2}
max_batch = 32
queue_rows = 512
concurrency = 256
timeout = 0.5
priority = 1
pinned = true
"""


def test_a_whole_configuration() -> None:
    got = parse_config(tomllib.loads(WHOLE), "config.toml")
    assert got == ModelConfig(
        versions=Policy("latest", 2), labels={"stable": 3, "canary": "latest"},
        split={"stable": 0.9, "canary": 0.1}, shadow=Shadowing("canary", 0.2), max_batch=32, queue_rows=512,
        concurrency=256, timeout=0.5, priority=1, pinned=True,
    )  # fmt: skip
    assert got.named == {"stable", "canary"}


@pytest.mark.parametrize(
    "text, key",
    [
        ("verions = 'all'", "verions"),
        ("versions = 'newest'", "versions"),
        ("versions = []", "versions"),
        ("versions = [0]", "versions"),
        ("versions = [true]", "versions"),
        ("versions = {latest = 0}", "versions.latest"),
        ("versions = {latest = 1, all = 2}", "versions"),
        ("labels = ['stable']", "labels"),
        ("labels = {'3' = 3}", "labels"),
        ("labels = {'a/b' = 3}", "labels"),
        ("labels = {stable = 0}", "labels.stable"),
        ("labels = {stable = 'newest'}", "labels.stable"),
        ("split = {stable = 1}", "stable"),
        ("split = {1 = -1}", "split.1"),
        ("split = {1 = inf}", "split.1"),
        ("split = {1 = nan}", "split.1"),
        ("split = {1 = 0, 2 = 0.0}", "split"),
        ("split = {'0' = 1}", "split"),
        ("split = {1 = true}", "split.1"),
        ("shadow = {fraction = 0.5}", "shadow"),
        ("shadow = {version = 1, fraction = 0}", "shadow.fraction"),
        ("shadow = {version = 1, fraction = 1.5}", "shadow.fraction"),
        ("shadow = {version = 1, other = 1}", "shadow"),
        ("shadow = {version = 'canary'}", "canary"),
        ("max_batch = 0", "max_batch"),
        ("max_batch = 1.0", "max_batch"),
        ("max_batch = 1000000", "max_batch"),
        ("queue_rows = '5'", "queue_rows"),
        ("timeout = 0", "timeout"),
        ("timeout = -1", "timeout"),
        ("priority = -1", "priority"),
        ("priority = 1000000", "priority"),
        ("ladder = 4", "ladder"),
        ("ladder = [4, 0]", "ladder"),
        ("pinned = 1", "pinned"),
        ("described = {}", "described"),
    ],
)  # fmt: skip
def test_errors_name_the_key(text: str, key: str) -> None:
    with pytest.raises(GatewayError, match=r"config\.toml.*(expected|did you mean)") as caught:
        parse_config(tomllib.loads(text), "config.toml")
    assert caught.value.status == 400 and key in str(caught.value)


@pytest.mark.parametrize(
    "document, expected",
    [
        ({"version_policy": {"all": {}}}, ModelConfig(versions=Policy("all"))),
        ({"version_policy": {"latest": {"num_versions": 3}}}, ModelConfig(versions=Policy("latest", 3))),
        ({"version_policy": {"latest": {"num_versions": "3"}}}, ModelConfig(versions=Policy("latest", 3))),
        ({"version_policy": {"specific": {"versions": ["2", 1]}}}, ModelConfig(versions=Policy("specific", 0, (1, 2)))),
        ({"max_batch_size": 8, "labels": {"a": 1}}, ModelConfig(max_batch=8, labels={"a": 1})),
        ({"dynamic_batching": {"preferred_batch_size": [4, 2]}}, ModelConfig(ladder=(2, 4))),
        ({"dynamic_batching": {"max_queue_delay_microseconds": 0}}, ModelConfig()),
        ({"max_batch_size": 0}, ModelConfig(described={"max_batch_size": 0})),
        ({"name": "x", "backend": "msedge"}, ModelConfig(described={"name": "x", "backend": "msedge"})),
        ({}, ModelConfig()),
    ],
)  # fmt: skip
def test_a_load_request_may_use_triton_s_words(document: Any, expected: ModelConfig) -> None:
    assert parse_override(json.dumps(document), "config") == expected


@pytest.mark.parametrize(
    "text",
    [
        None, 5, {}, "", "[]", "{",
        '{"a": NaN}', '{"max_batch": 1, "max_batch": 2}', "[" * 100_000, '{"version_policy": 1}',
        '{"version_policy": {}}', '{"version_policy": {"specific": {"versions": ["x"]}}}', '{"max_batch_size": -1}',
        '{"version_policy": {"latest": {"num_versions": "1e9"}}}', '{"version_policy": {"specific": {}}}', '{"x": 1}',
        '{"versions": "all", "described": {}}', '{"labels": {"\\ud800": 1}}', '{"versions": "\\udfff"}',
    ],
)  # fmt: skip
def test_invalid_overrides_are_refused(text: Any) -> None:
    with pytest.raises(GatewayError) as caught:
        parse_override(text, "config")
    assert caught.value.status == 400 and len(str(caught.value)) < 1000


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = "versions labels split shadow queue_rows timeout pinned version_policy ladder dynamic_batching name".split()


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_any_json_is_a_configuration_or_refused(document: Any) -> None:
    for read in (lambda: parse_config(document, "x"), lambda: parse_override(json.dumps(document), "x")):
        try:
            assert isinstance(read(), ModelConfig)
        except GatewayError as error:
            assert error.status == 400


BAD = ["", ".", "..", ".hidden", "a/b", "a\\b", "a b", "a\n", "a\0", "-x", "é", "a" * 256, "../x",
       "a/../b", "a%2fb", "~"]


@pytest.mark.parametrize("name", BAD)
def test_invalid_names(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(GatewayError, match="expected a model's name"):
        check_name(name, "here")


@pytest.mark.parametrize("name", ["a", "resnet8.int8", "A_b-c.1", "_x", "0", "a" * 255, "a..b"])
def test_names(name: str) -> None:
    assert check_name(name, "here") == name


@pytest.mark.parametrize("text", ["0", "01", "-1", "+1", "1.0", "1e3", " 1", "1\n", "", "canary", "٣", "1" * 30])
def test_invalid_versions(text: str) -> None:
    assert version_of(text) is None


def test_a_version_is_its_number() -> None:
    assert version_of("123") == 123


def test_whole_numbers_as_text_as_in_triton_s_examples() -> None:
    made = parse_override('{"max_batch_size": "16", "dynamic_batching": {"preferred_batch_size": ["4", 8]}}', "x")
    assert (made.max_batch, made.ladder) == (16, (4, 8))
    for wrong in ('"-1"', '"x"', '"1.5"', '""'):
        with pytest.raises(GatewayError, match="max_batch_size"):
            parse_override(f'{{"max_batch_size": {wrong}}}', "x")
