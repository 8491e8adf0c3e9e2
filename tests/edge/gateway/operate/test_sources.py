"""Settings: sources have the right precedence, errors name the key, printed settings have the same meaning when
read."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from edge.gateway.errors import GatewayError
from edge.gateway.operate.entries import Entry, entries
from edge.gateway.operate.settings import Access, Settings, Tls
from edge.gateway.operate.sources import print_config, resolve

ROOT = Path(__file__).resolve().parents[4]


def refused(match: str, *args: Any, **kwargs: Any) -> None:
    with pytest.raises(GatewayError, match=match):
        resolve(*args, **kwargs)


def file_of(folder: Path, text: str, name: str = "msedge.toml") -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


def test_defaults_are_the_tree_s(tmp_path: Path) -> None:
    assert resolve({}, {}, folder=tmp_path) == Settings()
    assert {name: entry.default for name, entry in entries().items()}["batching.rows"] == Settings().batching.rows


def test_each_name_has_one_spelling() -> None:
    every = entries().values()
    assert len({entry.flag for entry in every}) == len({entry.variable for entry in every}) == len(every)
    assert entries()["batching.queue_rows"].flag == "--batching-queue-rows"
    assert entries()["batching.queue_rows"].variable == "MSEDGE_SERVE_BATCHING_QUEUE_ROWS"


def test_every_default_keeps_its_own_rule() -> None:
    for entry in entries().values():
        assert type(entry.default) is entry.kind
        assert taken(entry, entry.default), entry.name


def taken(entry: Entry, value: Any) -> bool:
    """Whether a setting may have the value."""
    try:
        return bool(msgspec.convert(value, entry.hint) == value)
    except msgspec.ValidationError:
        return False


def test_flag_before_environment_before_file_before_default(tmp_path: Path) -> None:
    file_of(tmp_path, "[serve]\nport = 1\nthreads = 1\ndrain = 2\n[serve.batching]\nrows = 3\n")
    made = resolve(
        {"port": 3, "batching.rows": None}, {"MSEDGE_SERVE_PORT": "2", "MSEDGE_SERVE_THREADS": "2"}, folder=tmp_path
    )
    assert (made.port, made.threads, made.drain, made.batching.rows) == (3, 2, 2, 3)
    assert made.sources == {
        "port": "flag --port", "threads": "MSEDGE_SERVE_THREADS", "drain": "msedge.toml",
        "batching.rows": "msedge.toml",
    }  # fmt: skip


def test_pyproject_is_used_without_an_msedge_toml(tmp_path: Path) -> None:
    file_of(tmp_path, "[tool.msedge.serve]\nport = 9\n", "pyproject.toml")
    assert resolve({}, {}, folder=tmp_path).port == 9
    file_of(tmp_path, "[federate]\nx = 1\n")
    assert resolve({}, {}, folder=tmp_path).port == 9
    file_of(tmp_path, "[serve]\nport = 8\n")
    assert resolve({}, {}, folder=tmp_path).port == 8


def test_paths_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    text = '[serve]\nmodels = ["a.mslite", "b=sub/b.mslite", "/c", "https://r/x"]\n[serve.personal]\nstore = "p.db"\n'
    made = resolve({}, {}, file_of(folder, text), folder=tmp_path)
    assert made.models == (f"{folder}/a.mslite", f"b={folder}/sub/b.mslite", "/c", "https://r/x")
    assert made.personal.store == f"{folder}/p.db"
    made = resolve({"models": ["m.mslite"]}, {"MSEDGE_SERVE_ACCESS_TOKENS": "t"}, folder=tmp_path)
    assert (made.models, made.access.tokens) == ((f"{tmp_path}/m.mslite",), f"{tmp_path}/t")


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65536), ("64MiB", 64 << 20), ("64 MiB", 64 << 20), ("2g", 2 << 30), ("1kB", 1000), ("7b", 7)],
)
def test_sizes_have_units(tmp_path: Path, text: str, size: int) -> None:
    assert resolve({"limits.body": text}, {}, folder=tmp_path).limits.body == size
    assert resolve({}, {}, file_of(tmp_path, f"[serve.limits]\nbody = '{text}'")).limits.body == size


WRONG = [
    ("port", "eighty", "port: expected a port .* got 'eighty'"),
    ("port", "70000", "port: expected"),
    ("port", True, "port: expected"),
    ("port", 80.5, "port: expected"),
    ("drain", "nan", "drain: expected seconds"),
    ("drain", float("inf"), "drain: expected"),
    ("drain", -1, "drain: expected"),
    ("drain", 1 << 70, "drain: expected"),
    ("host", "", "host: expected"),
    ("host", "a b", "host: expected"),
    ("limits.body", "64XiB", "limits.body: expected bytes"),
    ("limits.body", "MiB", "limits.body: expected bytes"),
    ("limits.body", "-1", "limits.body: expected"),
    ("limits.body", "٣", "limits.body: expected"),
    ("limits.body", "9" * 40, "limits.body: expected"),
    ("limits.body", 0, "limits.body: expected"),
    ("access.management", "everyone", "access.management: expected 'loopback' or 'token' or 'off', got 'everyone'"),
    ("access.cors", ["*"], r"access\.cors\[0\]: expected an origin .* got \'\*\'"),
    ("access.cors", ["https://a", "https://b/path"], r"access\.cors\[1\]: expected an origin"),
    ("models", [1], r"models\[0\]: expected a path"),
    ("models", ["a\0b"], r"models\[0\]: expected a path"),
    ("traces.endpoint", "ftp://x", "traces.endpoint: expected"),
    ("traces.share", 1.5, "traces.share: expected a share"),
    ("prot", 1, "prot: no such setting; did you mean 'port'"),
]


@pytest.mark.parametrize(("name", "value", "match"), WRONG)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, value: Any, match: str) -> None:
    refused(match, {name: value}, {}, folder=tmp_path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("serve = 1", r"expected a section \[serve\]"),
        ("[other]", r"expected a section \[serve\]"),
        ("tool = 3", r"expected a section \[serve\], got none"),
        ("[tool]\nmsedge = [1]", r"expected a section \[serve\], got none"),
        ("[serve]\nprot = 1", "prot: no such setting; did you mean 'port'"),
        ("[serve]\nport = '80'", "port: expected a port .*'80'.*msedge.toml"),
        ("[serve]\nbatching = 1", r"batching: expected a section \[serve.batching\]"),
        ("[serve.batching]\nrow = 1", "batching.row: no such setting; did you mean 'batching.rows'"),
        ("[serve.nothing]\nrow = 1", "nothing: no such setting"),
        ("[serve]\nmodels = 'a'", "models: expected"),
        ("[serve]\nsources = {}", "sources: no such setting"),
        ("[serve", "expected TOML"),
        ("a = " + "[" * 5000, "expected TOML"),
    ],
)
def test_files_that_are_wrong(tmp_path: Path, text: str, match: str) -> None:
    refused(match, {}, {}, file_of(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    refused("cannot read", {}, {}, tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    refused("expected TOML", {}, {}, tmp_path / "bytes.toml")


def test_variables_that_do_not_exist(tmp_path: Path) -> None:
    refused("MSEDGE_SERVE_PROT: no such setting; did you mean 'MSEDGE_SERVE_PORT'", {}, {"MSEDGE_SERVE_PROT": "1"})
    assert resolve({}, {"MSEDGE_CACHE": "x", "PORT": "1"}, folder=tmp_path) == Settings()


def test_settings_that_contradict_each_other() -> None:
    for made in (
        lambda: Settings(tls=Tls(certificate="a")),
        lambda: Settings(tls=Tls(key="a")),
        lambda: Settings(tls=Tls(client_ca="a")),
        lambda: Settings(access=Access(management="token")),
        lambda: Settings(access=Access(metrics="token")),
    ):
        with pytest.raises(GatewayError, match="expect"):
            made()
    Settings(access=Access(management="token", tokens="file"))


def test_secrets_in_addresses_are_not_shown(tmp_path: Path) -> None:
    address = "https://me:hunter2@traces.example/v1?key=hunter2#hunter2"
    shown = print_config(resolve({"traces.endpoint": address, "models": [address]}, {}, folder=tmp_path))
    assert "hunter2" not in shown
    assert shown.count("https://***@traces.example/v1?***") == 2
    with pytest.raises(GatewayError) as caught:
        resolve({"host": address + " "}, {}, folder=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_values_know_their_source(tmp_path: Path) -> None:
    made = resolve({"port": 1}, {"MSEDGE_SERVE_HOST": "::1"}, file_of(tmp_path, "[serve]\ndrain = 2"), tmp_path)
    lines = print_config(made).splitlines()
    assert "port = 1  # flag --port" in lines
    assert 'host = "::1"  # MSEDGE_SERVE_HOST' in lines
    assert f"drain = 2.0  # {tmp_path}/msedge.toml" in lines
    assert "threads = 0  # default" in lines


def values(entry: Entry) -> st.SearchStrategy[Any]:
    if get_origin(entry.hint) is Literal:
        return st.sampled_from(get_args(entry.hint))
    kinds: dict[type, st.SearchStrategy[Any]] = {
        int: st.integers(0, 70_000),
        float: st.floats(0, 1),
        str: st.text(st.characters(codec="utf-8"), max_size=9).map(lambda text: f"/{text}"),
        tuple: st.lists(st.sampled_from(["https://a.example", "http://b:8"]), max_size=2).map(tuple),
    }
    if entry.name == "traces.endpoint":
        return st.sampled_from(["", "http://a:1/x"])
    return kinds[entry.kind].filter(lambda value: taken(entry, value))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@settings(max_examples=200)
@given(st.sampled_from(sorted(entries())), ANYTHING)
def test_any_value_is_taken_or_refused(name: str, value: Any) -> None:
    try:
        made = resolve({name: value}, {}, folder=Path("/nowhere"))
    except GatewayError as error:
        assert name in str(error) or name.partition(".")[0] in str(error)
        return
    assert tomllib.loads(print_config(made))


def test_settings_and_tokens_cost_little_to_import() -> None:
    heavy = ("numpy", "aiohttp", "orjson", "prometheus_client", "opentelemetry", "ssl", "asyncio")
    code = (
        "import sys; import edge.gateway.operate.sources, edge.gateway.access.tokens;"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


SOME = {name: values(entry) for name, entry in entries().items() if not name.startswith(("tls.", "access."))}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.fixed_dictionaries({}, optional=SOME))
def test_what_is_printed_says_the_same(tmp_path: Path, flags: dict[str, Any]) -> None:
    made = resolve(flags, {}, folder=tmp_path)
    shown = print_config(made)
    again = resolve({}, {}, file_of(tmp_path, shown, "printed.toml"), folder=tmp_path)
    assert replace(again, sources={}) == replace(made, sources={})
    assert tomllib.loads(shown)["serve"]["port"] == made.port
