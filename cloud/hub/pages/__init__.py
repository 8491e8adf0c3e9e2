"""The hub's pages: one document, a style and modules of JavaScript, served as they are. Nothing comes from elsewhere.

Style and charts' colours are those of `converter/report/page.css`, as of every page of the project that is made in
Python. The policy lets run what the hub serves under its own address and no script in the document; text becomes markup
nowhere (Trusted Types refuse it where a browser has them).

dom       elements, sections that are redrawn when their data change, dialogs
asking    requests to the hub
words     numbers, times and sizes for people
drawing   parts of several pages: tables, chips, meters, curves
orders    what an operator may do to a rollout
loops     what a loop does, and what an operator may decide there
main      logging in, addresses, the clock of the whole
fleet devices approvals rollout models audit     a page each
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib import resources
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["POLICY", "Page", "pages"]

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>msedge hub</title><link rel="icon" href="data:,">
<link rel="stylesheet" href="pages/page.css"><link rel="stylesheet" href="pages/hub.css">
<script type="module" src="pages/main.js"></script></head>
<body><noscript><p>This page needs JavaScript.</p></noscript></body></html>
"""
_KINDS = {"css": "text/css", "js": "text/javascript"}
_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)


class Page(NamedTuple):
    """A file as it is sent: its bytes and headers."""

    body: bytes
    headers: Mapping[str, str]


@cache
def pages() -> Mapping[str, Page]:
    """All files by name; "" is the document."""
    found = {"": _page(_DOCUMENT.encode(), "text/html")}
    shared = resources.files("converter.report").joinpath("page.css")
    for file in (shared, *resources.files(__package__).iterdir()):
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            found[file.name] = _page(file.read_bytes(), kind)
    return MappingProxyType(found)


def _page(body: bytes, kind: str) -> Page:
    tag = f'"{sha256(body).hexdigest()[:32]}"'
    return Page(body, {**_HEADERS, "Content-Type": f"{kind}; charset=utf-8", "ETag": tag})
