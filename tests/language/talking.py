"""A small model with random weights that reads and writes text: bytes, a few pairs of letters, four special tokens."""

from __future__ import annotations

from typing import Any

import numpy as np

from lite_runtime import bundle
from lite_runtime.language.generation import LanguageModel
from lite_runtime.language.tokenizers import AddedToken, Description, pack
from tests.language.tiny import Sizes, Tiny

__all__ = ["SPECIAL", "TEMPLATE", "talking", "talking_bundle"]

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PAIRS = ("th", "he", "in", "er", "an", "re", "on", "at", "en", "nd", "ti", "es", "or", "te", "of", "ed", "is", "it")


def description(chat: bool = True) -> Description:
    """Ids 0 to 3 are special tokens, 4 to 259 bytes, 260 to 277 pairs; no merge makes the others, up to 299."""
    letters = [bytes([byte]) for byte in range(256)]
    pairs = [pair.encode() for pair in _PAIRS]
    rest = [f"~{i}".encode() for i in range(300 - 260 - len(pairs))]
    tokens = (*[text.encode() for text in SPECIAL], *letters, *pairs, *rest)
    merges = np.array([[4 + a, 4 + b, 260 + i] for i, (a, b) in enumerate(pairs)], np.int32)
    return Description(
        tokens=tokens,
        kinds=bytes([3] * 4 + [1] * 296),
        model={"type": "BPE", "units": "bytes", "merging": "pairs", "byte_fallback": False, "ignore_merges": False,
               "fuse_unk": False, "unk": -1},
        merges=merges,
        pre_tokenizer=({"type": "Digits", "individual_digits": True},
                       {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}),
        decoder={"type": "ByteLevel"},
        added=tuple(AddedToken(i, text) for i, text in enumerate(SPECIAL)),
        ids={"bos": 1, "eos": 2},
        chat_template=TEMPLATE if chat else "",
    )  # fmt: skip


def talking_bundle(
    sizes: Sizes = Sizes(),  # noqa: B008
    *,
    seed: int = 0,
    chat: bool = True,
    cache: str = "float16",
    **about: Any,
) -> bytes:
    """The file. chat: whether it has a chat template."""
    tiny = Tiny(sizes, seed=seed, cache=cache)
    metadata = {"language": {**tiny.about, "template": TEMPLATE if chat else None, **about}}
    return bundle.write(None, tiny.graphs(), metadata=metadata, extra={"tokenizer": pack(description(chat))})


_BUNDLES = {kind: talking_bundle(cache=kind) for kind in ("float16", "int8")}


def talking(cache: str = "float16", **settings: Any) -> LanguageModel:
    """A loaded model of its own."""
    return LanguageModel.load(_BUNDLES[cache], **settings)
