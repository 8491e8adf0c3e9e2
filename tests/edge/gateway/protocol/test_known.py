"""Headers that were parsed before: the cached result is never different."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from edge.gateway.ports import Ports
from edge.gateway.protocol import known as module
from edge.gateway.protocol.known import Known
from edge.gateway.protocol.layout import LIMITS, Layout, layout_of
from tests.edge.gateway.protocol.support import body, port, ports, tensor

FIND = ports([port("x", "FP32", ("n", 3))])
BARE = body(tensor("x", "FP32", (1, 3), binary_data_size=12))[1:]


def layout(header: bytes, find: Any = FIND) -> Layout:
    return layout_of(orjson.loads(header), find, LIMITS)


def learned(header: bytes, find: Any = FIND) -> Known:
    known = Known()
    known.put(header, layout(header, find))
    return known


def test_an_id_in_front_makes_no_other_header() -> None:
    known = learned(b'{"id": "a", ' + BARE)
    for name in ("a", "b", "", "x y", "{0}"):
        found = known.get(b'{"id": "%s", ' % name.encode() + BARE, FIND)
        assert found is not None and found[1] == name
    assert known.get(b'{"id":"a", ' + BARE, FIND) is None
    assert known.get(b"{" + BARE, FIND) is None


@pytest.mark.parametrize("name", [b"\\u0061", b'a\\"b', b"\xc3\xa9", b"\x07", b"\xff"])
def test_ids_that_are_not_plain_are_left_to_the_parser(name: bytes) -> None:
    known = learned(b'{"id": "a", ' + BARE)
    assert known.get(b'{"id": "' + name + b'", ' + BARE, FIND) is None


@pytest.mark.parametrize("second", [b'"id": "a", ', b'"id": "b", ', b'"i\\u0064": "a", ', b'"id": "", '])
def test_an_id_that_stands_twice_is_not_learned(second: bytes) -> None:
    """The last one counts: put in another in front, and the answer is still the last one's."""
    known = learned(b'{"id": "a", ' + second + BARE)
    other = b'{"id": "z", ' + second + BARE
    found = known.get(other, FIND)
    assert found is None or found[1] == layout(other).id


def test_a_layout_is_only_used_for_the_ports_it_was_checked_with() -> None:
    header = b"{" + BARE
    known, other = learned(header), ports([port("x", "FP32", ("n", None))])
    assert known.get(header, other) is None
    known.put(header, layout(header, other))
    for find in (FIND, other):
        found = known.get(header, find)
        assert found is not None and found[0].ports is find("predict")


def test_requests_that_hold_data_are_not_kept() -> None:
    header = body(tensor("x", "FP32", (1, 3), [1, 2, 3]))
    assert learned(header).get(header, FIND) is None
    long = b"{" + b" " * 5000 + BARE
    assert learned(long).get(long, FIND) is None


def test_kept_layouts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_HEADERS", 4)
    header, known = b"{" + BARE, Known()
    known.put(header, layout(header))
    for n in range(100):
        known.put(b" " * n + b"  " + header, layout(header))
        assert known.get(header, FIND) is not None  # asked for all the time
        assert len(known._young) + len(known._old) <= 8
    assert known.get(b"  " + header, FIND) is None

    others: list[Ports] = []
    for _ in range(50):
        find = ports([port("x", "FP32", ("n", 3))])
        others.append(find("predict"))
        known.put(header, layout(header, find))
        assert known.get(header, find) is not None
        assert len(known._young[header][1]) <= 16
