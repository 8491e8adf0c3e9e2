"""The page of a request for labels: every example with the classes to choose from. It needs no server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from html import escape
from importlib import resources

from converter.report.html import document
from edge.pages.pictures import pictured
from lite_runtime.active.keeping import Example

__all__ = ["label_page"]

KEYS = 9
"""The first classes have a digit of the keyboard: numbers their own, names their place from 1 on."""


def label_page(examples: Sequence[Example], names: Sequence[str], classes: int) -> str:
    """The page, a file of its own. names: of the classes, or none: then they are numbers."""
    shown = list(names) or [str(number) for number in range(classes)]
    keys = shown[: KEYS + 1] if not names else [str(number + 1) for number in range(min(KEYS, len(shown)))]
    options = json.dumps({"ids": [one.id for one in examples], "keys": keys})
    cards = "".join(_card(place, one, shown) for place, one in enumerate(examples))
    head = (
        f"<header><h1>{len(examples)} examples to label</h1><p>Choose the class of each: click it, or press its digit; "
        "<kbd>?</kbd> is for what you cannot tell, <kbd>←</kbd> and <kbd>→</kbd> go to other examples. "
        "The choices stay in this browser until you save them.</p>"
        '<p class="bar"><button id="save" type="button">Save answers.json</button> <span id="count" '
        'aria-live="polite"></span></p></header>'
    )
    script = f'<script type="application/json" id="request">{_inside(options)}</script><script>{_script()}</script>'
    return document("Labels", f"<style>{_style()}</style>{head}<main>{cards}</main>{script}", "a request for labels")


def _card(place: int, example: Example, names: Sequence[str]) -> str:
    """An example, and a button for each class. The model's guess is not shown: it would be believed."""
    pictures = "".join(pictured(array, name) for name, array in example.inputs.items())
    numbers = names == [str(number) for number in range(len(names))]
    keys = ("" if numbers or number >= KEYS else f"<kbd>{number + 1}</kbd> " for number in range(len(names)))
    buttons = "".join(
        f'<button type="button" data-class="{number}" aria-pressed="false">{key}{escape(name)}</button>'
        for number, (name, key) in enumerate(zip(names, keys, strict=True))
    )
    unknown = '<button type="button" data-class="" aria-pressed="false"><kbd>?</kbd> cannot tell</button>'
    return f'<section class="card" tabindex="0" data-place="{place}">{pictures}<div>{buttons}{unknown}</div></section>'


def _inside(words: str) -> str:
    """JSON within a script element."""
    return words.replace("<", "\\u003c")


@cache
def _script() -> str:
    return resources.files("edge.pages").joinpath("label.js").read_text(encoding="utf-8")


@cache
def _style() -> str:
    return resources.files("edge.pages").joinpath("label.css").read_text(encoding="utf-8")
