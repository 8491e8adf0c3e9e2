"""Valid names of models and versions, wherever they come from: a folder, a request's path, a registry."""

from __future__ import annotations

import re

from edge.gateway.errors import GatewayError

__all__ = ["LABEL", "NAME", "VERSION", "check_name", "is_name", "shown", "version_of"]

NAME = r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}$"
"""No slash, no leading dot, no character with a special meaning in a path, a log or a shell."""
LABEL = r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$"
"""The pattern of labels: never a number, so that `versions/canary` and `versions/3` cannot be confused."""
VERSION = r"^[1-9][0-9]{0,17}$"
_NAME, _VERSION = re.compile(NAME), re.compile(VERSION)


def is_name(text: str) -> bool:
    """Whether this is a valid model name."""
    return _NAME.match(text) is not None and not text.endswith("\n")


def check_name(text: str, where: str) -> str:
    """The name, if it is valid; raises GatewayError (400)."""
    if not is_name(text):
        raise GatewayError(
            400, f"{where}: expected a model's name of up to 255 letters, digits and _ . -, not beginning with . or -,"
            f" got {shown(text)}; rename it"
        )  # fmt: skip
    return text


def version_of(text: str) -> int | None:
    """A version's number; None if the text is not one: numbers begin at 1 and have no leading zeros."""
    return int(text) if _VERSION.match(text) and not text.endswith("\n") else None


def shown(value: object) -> str:
    """An untrusted value as an error shows it: quoted and shortened."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
