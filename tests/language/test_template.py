"""Templates of chats: what Jinja renders, within bounds, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lite_runtime.errors import TemplateError
from lite_runtime.language import ChatTemplate

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are helpful<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS = """
{%- set ns = namespace(tool=false, last=messages|length - 1) %}
{%- if tools %}
    {{- '<tools>' ~ (tools | map(attribute='function') | list | tojson(indent=2)) ~ '</tools>' }}
{%- endif %}
{%- for message in messages[::-1] %}
    {%- if message.role == "user" and message.content is string and not ns.tool %}
        {%- set ns.tool = true %}{%- set ns.last = messages|length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- macro shown(text, mark='"') %}
    {{- mark }}{{ text.strip().split('</think>')[-1].lstrip('\\n') }}{{ mark }}{% endmacro %}
{%- for message in messages if message.content %}
    {%- if loop.index0 > ns.last %}{% continue %}{% endif %}
    {{- bos_token if loop.first }}{{ shown(message.content) }}|{{ loop.index }}/{{ loop.length }}
    {%- for call in message.tool_calls or [] %}{{ call.arguments.items() | list | tojson }}{% endfor %}
    {%- generation %}{{ message['role'] | upper | replace('U', 'V') }}{% endgeneration %}
{%- endfor %}
{{- messages | selectattr('role', 'equalto', 'user') | list | length }}{{ 7 // 2 }}{{ [1, 2] + [3] }}{{ {'a': 1} }}
"""
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & \u00e9"},
    {"role": "user", "content": "  a  "},
    {"role": "assistant", "content": "<think>\nx</think>\n\nb", "tool_calls": [{"arguments": {"x": [1, None]}}]},
    {"role": "user", "content": "c"},
]
FUNCTIONS = [{"type": "function", "function": {"name": "f", "parameters": {"x": {"type": "integer"}}}}]


def jinja(source: str, **values: Any) -> str:
    """Jinja's own result."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return made.from_string(source.replace("generation %}", "if true %}").replace("endif true", "endif")).render(
        **values
    )


@pytest.mark.parametrize("source", [CHATML, TOOLS], ids=["chatml", "tools"])
@pytest.mark.parametrize("tools", [None, FUNCTIONS], ids=["", "functions"])
@pytest.mark.parametrize("prompt", [False, True])
def test_results_are_jinjas(source: str, tools: Any, prompt: bool) -> None:
    template = ChatTemplate(source)
    for count in range(1, 5):
        values = {"messages": MESSAGES[:count], "tools": tools, "add_generation_prompt": prompt, "bos_token": "<s>"}
        assert template.render(**values) == jinja(source, **values)


def test_long_chats() -> None:
    """A thousand messages are no work."""
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 50} for i in range(1000)]
    assert len(ChatTemplate(CHATML).render(messages)) > 250_000


GROWING = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}{{ ns.x }}"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for i in range(10**9) %}x{% endfor %}", "steps"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "steps"),
        (GROWING.replace("START", "'a'").replace("STEP", "ns.x ~ ns.x"), "characters"),
        (GROWING.replace("START", "'a'").replace("STEP", "ns.x + ns.x"), "characters"),
        (GROWING.replace("START", "[]").replace("STEP", "[ns.x, ns.x]"), "steps"),
        (GROWING.replace("START", "2").replace("STEP", "ns.x * ns.x"), "bits"),
        ("{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(50) }}", "steps"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
        ("{% set x %}{% for i in range(90000) %}" + "y" * 1000 + "{% endfor %}{% endset %}", "characters"),
        ("{% set x = 'a' * 9000000 %}{% for i in range(90000) %}{{ x == x }}{% endfor %}", "characters"),
        ("{% set x = 'a' * 9000000 %}{% for i in range(90000) %}{{ x[1:] | length }}{% endfor %}", "characters"),
        (
            "{% set x = 'a' * 9000000 %}{% for i in range(90000) %}{% if x.isupper() %}{% endif %}{% endfor %}",
            "characters",
        ),
        ("{{ 'a' * 10**9 }}", "characters"),
        ("{{ ('a' * 9999).replace('a', 'b' * 9999) }}", "characters"),
        ("{{ 2 ** (10**9) }}", "large power"),
        ("{{ '%999999999d' % 1 }}", "formatting"),
        ("{{ '{:999999999}'.format(1) }}", "format"),
        ("{{ 'a'.__class__.__mro__ }}", "'__class__' of a str"),
        ("{{ messages[0]['__class__'] }}", "'__class__' of a dict"),
        ("{{ messages | map(attribute='__class__') | list }}", "'__class__' of a dict"),
        ("{{ messages.append(1) }}", "'append' of a list"),
        ("{{ range.__globals__ }}", "'__globals__' of a function"),
        ("{{ self.__init__ }}", "'__init__' of a TemplateReference"),
        ("{% include 'x' %}", "include in line 1"),
        ("{% extends 'x' %}", "extends in line 1"),
        ("{% for m in messages recursive %}{{ loop(m) }}{% endfor %}", "recursive loop"),
        ("{{ lipsum(9) }}", "not safely callable"),
        ("{{ 'a' | center(999999999) }}", "No filter named 'center'"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{% if %}", "line 1"),
        ("{{ " + "(" * 9999 + ")" * 9999 + " }}", "RecursionError"),
        ("x" * 200_000, "at most"),
        ("{{ raise_exception('no system role') }}", "refuses these messages: no system role"),
    ],
)
def test_templates_that_are_refused(source: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        ChatTemplate(source).render(MESSAGES)


@pytest.mark.parametrize(
    "value", [object(), b"bytes", {1: 2}, {"a": print}], ids=["object", "bytes", "keys", "function"]
)
def test_messages_are_plain_values(value: Any) -> None:
    with pytest.raises(TemplateError, match="expected text"):
        ChatTemplate(CHATML).render([{"role": "user", "content": value}])


def test_messages_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": "a", "tags": ["x"]}]
    with pytest.raises(TemplateError):
        ChatTemplate("{{ messages[0].update({'role': 'b'}) }}").render(messages)
    assert messages == [{"role": "user", "content": "a", "tags": ["x"]}]
