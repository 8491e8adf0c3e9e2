"""Stop texts: nothing of one is passed on, however the text is divided."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from lite_runtime.errors import InputError
from lite_runtime.language.stops import Stops


def by_definition(text: str, stops: list[str]) -> str:
    for end in range(len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


def test_any_division_of_a_text_gives_the_same() -> None:
    rng = Random(0)
    for _ in range(3000):
        stops = ["".join(rng.choices("ab\xe9", k=rng.randrange(1, 5))) for _ in range(rng.randrange(0, 4))]
        text = "".join(rng.choices("ab\xe9", k=rng.randrange(0, 20)))
        machine, passed, at, stopped = Stops(stops), "", 0, False
        while at < len(text) and not stopped:
            count = rng.randrange(1, 6)
            more, stopped = machine.feed(text[at : at + count])
            passed += more
            at += count
            assert by_definition(text, stops).startswith(passed)
        assert passed + ("" if stopped else machine.finish()) == by_definition(text, stops)


def test_text_is_held_only_while_a_stop_may_begin() -> None:
    machine = Stops(["</end>"])
    assert machine.feed("a <") == ("a ", False)
    assert machine.feed("/b") == ("</b", False)
    assert machine.feed("</end") == ("", False)
    assert machine.feed("> more") == ("", True)


@pytest.mark.parametrize("stops", ["abc", [""], [3], ["a"] * 65, ["a"] * 100_000, ["a" * 1025], ["a" * 1_000_000]])
def test_wrong_stops(stops: object) -> None:
    with pytest.raises(InputError, match="expected up to 64 texts") as error:
        Stops(stops)  # type: ignore[arg-type]
    assert len(str(error.value)) < 300


def test_long_stops_take_a_few_steps_a_character() -> None:
    """A search that begins again at every character takes a thousand times as many."""
    machine = Stops(["a" * 1023 + "b"])
    machine._searches[0].stop = counted = Counted(machine._searches[0].stop)
    passed = "".join(machine.feed("a" * 7)[0] for _ in range(2000))
    assert passed + machine.finish() == "a" * 14_000 and counted.looks < 3 * 14_000


class Counted(str):
    """A text that counts how often one of its characters is looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> str:
        self.looks += 1
        return super().__getitem__(key)
