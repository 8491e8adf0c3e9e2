"""Tables as typed values: what is refused, and that errors name the key, what was expected, and the nearest key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from federated.tables import Count, Fraction, Number, Positive, Reader, Seed, Share, Table, Whole, expected


class Wrong(Exception):
    """The error of this file's tables."""


READ = Reader(Wrong, "write one")


class Inner(Table, frozen=True):
    reader: ClassVar[Reader] = READ
    count: Count
    rate: Number = 1.0
    names: tuple[str, ...] = ()
    mode: Literal["sync", "async"] = "sync"

    def __post_init__(self) -> None:
        super().__post_init__()
        READ.need(self.rate != 7 or self.count == 7, "inner.rate", "no 7 without inner.count = 7", self.rate)


@dataclass(frozen=True)
class Plain:
    speed: Positive = 1.0
    steps: int = 1


class Outer(Table, frozen=True):
    reader: ClassVar[Reader] = READ
    inner: Inner
    later: Inner = msgspec.field(default=Inner(3), name="async")
    shares: Mapping[Annotated[str, Meta(pattern=r"\A[a-z]+\Z", description="small letters")], Share] = msgspec.field(
        default_factory=dict
    )
    which: Literal["all"] | Inner | Annotated[list[Count], Meta(min_length=1)] = "all"
    least: Whole | None = None


def test_values_of_the_file_are_read() -> None:
    made = READ.read(Outer, {"inner": {"count": 2, "rate": 3, "names": ["a"]}, "async": {"count": 1}, "which": [1, 2]})
    assert made == Outer(Inner(2, 3.0, ("a",)), Inner(1), {}, [1, 2]) and isinstance(made.inner.rate, float)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ({}, "[inner]: expected this section with count, got none; write one"),
        ({"inner": {}}, "inner.count: expected a whole number of at least 1, got none"),
        ({"inner": 3}, "inner: expected a section, got 3"),
        ({"inner": {"count": 0}}, "inner.count: expected a whole number of at least 1, got 0"),
        ({"inner": {"count": True}}, "inner.count: expected a whole number of at least 1, got True"),
        ({"inner": {"count": 1.0}}, "inner.count: expected a whole number of at least 1, got 1.0"),
        ({"inner": {"count": "1"}}, "inner.count: expected a whole number of at least 1, got '1'"),
        ({"inner": {"cuont": 1}}, "inner.cuont: no such key; did you mean 'count'?"),
        ({"inner": {"xyzzy": 1}}, "inner.xyzzy: no such key; expected one of count, rate, names, mode"),
        ({"inner": {"count": 1, "rate": float("nan")}}, "inner.rate: expected a number, got nan"),
        ({"inner": {"count": 1, "rate": 1e301}}, "inner.rate: expected a number, got 1e+301"),
        ({"inner": {"count": 1, "rate": 7}}, "inner.rate: expected no 7 without inner.count = 7, got 7.0"),
        ({"inner": {"count": 1, "names": "a"}}, "inner.names: expected a list of texts, got 'a'"),
        ({"inner": {"count": 1, "names": ["a", 1]}}, "inner.names[1]: expected a text, got 1"),
        ({"inner": {"count": 1, "mode": "fast"}}, "inner.mode: expected 'sync' or 'async', got 'fast'"),
        ({"iner": {"count": 1}}, "[iner]: no such section; did you mean 'inner'?"),
        ({"later": {"count": 1}, "inner": {"count": 1}}, "[later]: no such section; expected one of inner, async,"),
        ({"inner": {"count": 1}, "async": {"count": -1}}, "async.count: expected a whole number of at least 1, got -1"),
        ({"inner": {"count": 1}, "shares": {"a": 1.0}}, "shares.a: expected a share from 0 to below 1, got 1.0"),
        ({"inner": {"count": 1}, "shares": {"A": 0.5}}, "shares: expected small letters, got 'A'"),
        ({"inner": {"count": 1}, "which": "any"}, "which: expected 'all' or a table or a list, each element a whole"),
        ({"inner": {"count": 1}, "which": [2, 0]}, "which[1]: expected a whole number of at least 1, got 0"),
        ({"inner": {"count": 1}, "which": []}, "which: expected 'all' or a table or a list"),
        ({"inner": {"count": 1}, "which": {"count": 0}}, "which.count: expected a whole number of at least 1, got 0"),
        ({"inner": {"count": 1}, "which": {}}, "which.count: expected a whole number of at least 1, got none"),
        ({"inner": {"count": 1}, "least": -1}, "least: expected a whole number of at least 0, got -1"),
    ],
)
def test_errors_name_the_key(document: Any, text: str) -> None:
    with pytest.raises(Wrong) as caught:
        READ.read(Outer, document)
    assert str(caught.value).startswith(text)
    with pytest.raises(Wrong) as caught:
        READ.read(Outer, document, "run.toml: ")
    assert str(caught.value).removeprefix("run.toml: ").startswith(text)


@pytest.mark.parametrize(("where", "text"), [("", "the file: "), ("run.toml: ", "run.toml: "), ("which", "which: ")])
def test_values_that_are_not_tables(where: str, text: str) -> None:
    with pytest.raises(Wrong, match=f"^{text}expected a (table|section), got 5$"):
        READ.read(Outer, 5, where)


def test_values_set_in_python_obey_the_same_rules() -> None:
    with pytest.raises(Wrong, match=r"Inner\.count: expected a whole number of at least 1, got 0"):
        Inner(0)
    with pytest.raises(Wrong, match=r"Inner\.rate: expected a number, got inf"):
        msgspec.structs.replace(Inner(1), rate=float("inf"))


def test_dataclasses_refuse_unknown_keys_too() -> None:
    assert READ.read(Plain, {"speed": 2}, "plain") == Plain(2.0)
    for words, text in {
        "sped": r"plain\.sped: no such key; did you mean 'speed'",
        "steps": r"plain\.steps: expected a whole number, got 'x'",
    }.items():
        with pytest.raises(Wrong, match=text):
            READ.read(Plain, {words: "x"}, "plain")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, Meta(ge=1, le=65535)], "a whole number from 1 to 65,535"),
        (Annotated[float, Meta(gt=0, le=1)], "a number above 0 and at most 1"),
        (Annotated[float, Meta(ge=0.5, lt=2)], "a number of at least 0.5 and below 2"),
        (Number, "a number"),
        (Positive, "a number above 0"),
        (Seed, "a whole number from 0 to below 2^63"),
        (Fraction, "a share from 0 to 1"),
        (bool, "true or false"),
        (Mapping[str, int], "a table"),
    ],
)
def test_descriptions_of_expected_values(kind: Any, words: str) -> None:
    assert expected(kind) == words


def test_files(tmp_path: Path) -> None:
    with pytest.raises(Wrong, match=r"cannot read '.*none\.toml': No such file or directory; write one"):
        READ.file(tmp_path / "none.toml")
    for content in (b"[model\n", b"\xff\xfe", b"a = " + b"[" * 5000):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(Wrong, match=r"bad\.toml': expected TOML"):
            READ.file(tmp_path / "bad.toml")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["inner", "count", "rate", "which", "shares", "x"]), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_anything_is_read_or_refused(document: Any) -> None:
    try:
        assert isinstance(READ.read(Outer, document), Outer)
    except Wrong as error:
        assert "expected" in str(error) or "no such" in str(error)
