"""Self-contained pages: style and script are embedded, and a content security policy allows nothing else to run."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import NamedTuple

__all__ = ["Page", "explore_page", "status_page"]


class Page(NamedTuple):
    """An answer: its bytes and every header they are sent with."""

    body: bytes
    headers: Mapping[str, str]


@cache
def explore_page() -> Page:
    """`/docs`: the OpenAPI document of `/openapi.json` as forms that send requests."""
    return _page("Requests", "explore")


@cache
def status_page() -> Page:
    """`/status`: shows `/status.json`, updated once a second."""
    return _page("Status", "status")


def _page(title: str, name: str) -> Page:
    style, script = (_text(f"page.{kind}") + _text(f"{name}.{kind}") for kind in ("css", "js"))
    body = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{escape(title)} – msedge</title><link rel="icon" href="data:,"><style>{style}</style></head>\n'
        f"<body><main><noscript><p>This page needs JavaScript.</p></noscript></main>\n"
        f"<script>{script}</script></body></html>\n"
    )
    return Page(body.encode(), _headers(style, script))


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _headers(style: str, script: str) -> dict[str, str]:
    """The response headers. The policy has digests instead of nonces: the page is always the same, and scripts added
    to it do not run."""
    policy = {
        "default-src": "'none'",
        "style-src": _digest(style),
        "script-src": _digest(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(f"{where} {what}" for where, what in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
