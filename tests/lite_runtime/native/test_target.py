"""The table of instruction sets, and which of them this machine uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lite_runtime.errors import MsedgeError
from lite_runtime.native import target


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    target.host.cache_clear()
    yield
    target.host.cache_clear()


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine of the baseline, on which nothing is asked for."""
    monkeypatch.delenv("MSEDGE_TARGET", raising=False)
    monkeypatch.setattr(target.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(target.platform, "system", lambda: "Linux")
    return monkeypatch


def test_names_are_distinct_and_the_best_comes_first() -> None:
    names = [t.name for t in target.TARGETS]
    assert len(set(names)) == len(names)
    assert [t.lanes for t in target.TARGETS] == sorted((t.lanes for t in target.TARGETS), reverse=True)


@pytest.mark.parametrize("wanted", target.TARGETS, ids=lambda t: t.name)
def test_a_machine_takes_the_best_it_has_the_flags_for(only: pytest.MonkeyPatch, wanted: target.Target) -> None:
    only.setattr(target, "_cpu_flags", lambda: wanted.needs)
    assert target.host() is wanted


def test_dot_products_take_one_instruction_where_the_flag_says_so() -> None:
    for t in target.TARGETS:
        assert (t.dot == "vpdpbusd") == bool(t.needs & {"avx512_vnni", "avx_vnni"})


def test_no_target_without_flags_or_if_disabled(only: pytest.MonkeyPatch) -> None:
    only.setattr(target, "_cpu_flags", lambda: frozenset())
    assert target.host() is None
    target.host.cache_clear()
    only.setattr(target, "_cpu_flags", lambda: target.TARGETS[0].needs)
    only.setenv("MSEDGE_TARGET", "none")
    assert target.host() is None


def test_a_target_beyond_the_machine_is_refused_with_those_it_runs(only: pytest.MonkeyPatch) -> None:
    only.setattr(target, "_cpu_flags", lambda: target.TARGETS[-1].needs)
    only.setenv("MSEDGE_TARGET", "x86-64-v4")
    with pytest.raises(MsedgeError, match=r"this machine runs x86-64-v2"):
        target.host()
