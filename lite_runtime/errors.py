"""All errors that users of the runtime can get. Each text says what was expected, what was found, where, and the
fix."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BundleError",
    "ExplainError",
    "ExplainTimeError",
    "InputError",
    "MissingExtraError",
    "MsedgeError",
    "ShapeError",
    "TemplateError",
    "UnsupportedOpError",
]


class MsedgeError(Exception):
    """Base class of all errors that msedge raises on purpose; the text may be shown to a user.

    Names in files and requests may be of any length and contain characters that a terminal obeys: the text has these
    escaped, and leaves out the middle of lines that nobody would read.
    """

    def __str__(self) -> str:
        return "\n".join(map(_readable, super().__str__().split("\n")))


_LINE = 1200
"""The most characters of a line."""


def _readable(line: str) -> str:
    if not line.isprintable():
        line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    if len(line) <= _LINE:
        return line
    return f"{line[: 2 * _LINE // 3]} … {line[-_LINE // 3 :]}"


class BundleError(MsedgeError):
    """A bundle file is malformed, corrupt or from a newer format."""


class ExplainError(MsedgeError):
    """A model, a sample, a class, a method and a budget that do not go together, or settings that a method refuses."""


class ExplainTimeError(ExplainError):
    """An explanation was not finished within its limit of seconds."""


class InputError(MsedgeError):
    """A caller gave a model wrong inputs: name, dtype, rank or shape."""


class ShapeError(MsedgeError):
    """A node's operands are incompatible with each other or with its attributes."""


class TemplateError(MsedgeError):
    """The template of a chat is malformed, refuses the messages, or asks for what it may not have."""


class UnsupportedOpError(MsedgeError):
    """The graph contains operators that this build cannot run; the text lists all of them."""


class MissingExtraError(MsedgeError):
    """An optional dependency is not installed; the text names the `pip install` line of the extra's packages."""

    def __init__(self, package: str, extra: str, why: str, packages: Sequence[str] = ()) -> None:
        from lite_runtime._extras import install_line

        super().__init__(f"{package} is not installed; {why}. Install it with: {install_line(extra, packages)}")
        self.package, self.extra = package, extra
