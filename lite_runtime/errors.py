"""Every error a user of the runtime can meet. Text: what was expected, what was got, where, and the fix."""

from __future__ import annotations

__all__ = [
    "BundleError",
    "InputError",
    "MissingExtraError",
    "MsedgeError",
    "ShapeError",
    "UnsupportedOpError",
]


class MsedgeError(Exception):
    """Root of all errors msedge raises on purpose; its text is fit to be shown to a user."""


class BundleError(MsedgeError):
    """A bundle file is malformed, corrupt or from a newer format."""


class InputError(MsedgeError):
    """A caller handed a model wrong inputs: name, dtype, rank or shape."""


class ShapeError(MsedgeError):
    """A node's operands do not fit each other or its attributes."""


class UnsupportedOpError(MsedgeError):
    """The graph holds operators this build cannot run; the text lists all of them."""


class MissingExtraError(MsedgeError):
    """An optional dependency is not installed; the text names the `pip install` line."""

    def __init__(self, package: str, extra: str, why: str) -> None:
        super().__init__(f"{package} is not installed; {why}. Install it with: pip install 'msedge[{extra}]'")
        self.package, self.extra = package, extra
