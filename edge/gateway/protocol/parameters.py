"""Parameters of requests and of their tensors: allowed values, and those that have an effect here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from edge.gateway.errors import GatewayError

__all__ = ["LONGEST", "checked", "checked_reserved", "expect", "natural", "wrong"]


LONGEST = 128
"""The largest number of characters of a sequence's name."""
_TEXT = 400
"""The largest number of characters of an error text: it contains names and values from the client, which could be as
long as the body."""


def wrong(text: str) -> GatewayError:
    """The error for an invalid request, with its text limited in length."""
    return GatewayError(400, text if len(text) <= _TEXT else text[:_TEXT] + "…")


def expect(fits: bool, text: str, *values: object) -> None:
    """Raise the error of `wrong` if `fits` is false. `values` replace `%s` and `%r` in `text` only if it is raised."""
    if not fits:
        raise wrong(text % values)


def natural(value: Any) -> bool:
    """Whether a JSON value is an integer of at least 0; true and false are not."""
    return type(value) is int and value >= 0


def checked(parameters: Any, whose: str) -> None:
    """Check that parameters are an object of strings, numbers and booleans. Raises GatewayError (400)."""
    expect(type(parameters) is dict, "expected parameters of %s to be an object", whose)
    for key, value in parameters.items():
        if type(value) not in (str, int, float, bool):
            raise wrong(f"parameters of {whose}: expected {key!r} to be a string, a number, true or false")


_RESERVED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "binary_data_output": (lambda v: type(v) is bool, "true or false"),
    "confidence": (lambda v: type(v) is bool, "true or false"),
    "priority": (natural, "an integer from 0 on (1 is the highest, 0 the default)"),
    "sequence_end": (lambda v: type(v) is bool, "true or false"),
    "sequence_id": (
        lambda v: (natural(v) and v < 1 << 64) or (type(v) is str and len(v) <= LONGEST),
        f"an integer from 0 on (0: none) or a string of at most {LONGEST} characters",
    ),
    "sequence_start": (lambda v: type(v) is bool, "true or false"),
    "signature": (lambda v: type(v) is str, "a string, the signature's name"),
    "timeout": (natural, "an integer from 0 on (microseconds)"),
}
"""Parameters of requests with an effect here: whether a value is valid, and what is expected."""


def checked_reserved(parameters: Mapping[str, Any]) -> None:
    """Check the request's parameters that have an effect here. Raises GatewayError (400)."""
    for key, (fits, expected) in _RESERVED.items() if parameters else ():
        if key in parameters and not fits(parameters[key]):
            raise wrong(f"parameters.{key}: expected {expected}, got {parameters[key]!r}")
