"""`msedge verify` of a language model: its logits beside those of its source in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from edge.cli.errors import CHECK_FAILED
from edge.cli.output import console, emit, say, table
from lite_runtime.errors import InputError

if TYPE_CHECKING:
    from edge.measuring.logits import Likeness
    from lite_runtime import Model
    from lite_runtime.graph import Array

__all__ = ["verify_language"]


class Asked(NamedTuple):
    """Options of `verify` that apply."""

    data: Path | None
    samples: int
    tolerance: float | None
    seed: int
    threads: int
    as_json: bool


def verify_language(source: Path, model: Model, asked: Asked) -> None:
    """Compare a language model's bundle with its source, a file or folder that `convert` reads or another bundle, and
    print how far off it is. Exit code 1 if it differs by more than is allowed."""
    import numpy as np

    from edge.measuring.logits import compared, logits_of, most_nats, most_share
    from lite_runtime.language.engine import described

    about = described(model)
    windows = np.asarray(_windows(model, asked))
    say(f"{len(windows)} window{'s' * (len(windows) != 1)} of {windows.shape[1]} tokens, by the source in float32")
    expected = _expected(source, about, windows, asked.threads)
    found = compared(windows, logits_of(model, windows), expected)
    share = most_share(model.bundle) if asked.tolerance is None else asked.tolerance
    allowed = most_nats(model.bundle) if share is None else share
    same = found.alike(allowed) if share is None else found.within(share)
    words = f"{allowed:g} nats a token" if share is None else f"{allowed:g} of the logits' range"
    if asked.as_json:
        emit({"same": same, "limit": {"of": "nats" if share is None else "range", "most": allowed}, **_as_json(found)})
    else:
        _print(found)
        print(f"{'equal within' if same else 'DIFFERENT by more than'} {words}, over {found.tokens} tokens")
    if not same:
        raise typer.Exit(CHECK_FAILED)


def _windows(model: Model, asked: Asked) -> Array:
    """Tokens (windows, length): of the text that was given, or of one that msedge has."""
    import numpy as np

    from converter.golden_text import TEXT
    from converter.quantize.language.texts import LENGTH, cut, read, spread
    from lite_runtime.language.engine import described
    from lite_runtime.language.tokenizers import SECTION, Tokenizer

    about, bos = described(model), None
    if SECTION in model.bundle.sections:
        tokenizer = Tokenizer.from_bytes(model.bundle.section(SECTION))
        text = TEXT if asked.data is None else read(asked.data, "--data")
        tokens = np.array(tokenizer.encode(text, special=False, add=False), np.int32)
        first = list(tokenizer.description.template["single"][:1])
        bos = about["bos"] if first == [about["bos"]] else None
    elif asked.data is not None:
        raise InputError("--data: this bundle has no tokenizer for a text; omit it, and random tokens are used")
    else:
        tokens = np.random.default_rng(asked.seed).integers(0, about["vocabulary"], LENGTH // 4).astype(np.int32)
    length = min(LENGTH, about["context"], len(tokens) + (bos is not None))
    if length < 2 + (bos is not None):
        raise InputError(f"expected a text of at least 2 tokens, and a context for them, got {len(tokens)} tokens")
    return spread(cut(tokens, length, bos), asked.samples)


def _expected(source: Path, about: Mapping[str, Any], windows: Array, threads: int) -> Iterator[Array]:
    """The source's logits of each window."""
    from edge.measuring.contest import is_bundle
    from edge.measuring.logits import logits_of
    from lite_runtime.language.engine import described

    if source.is_file() and is_bundle(source):
        import lite_runtime

        model = lite_runtime.load(source, threads=threads)
        _need_equal(source, described(model)["vocabulary"], about["vocabulary"])
        return logits_of(model, windows)
    from converter.quantize.language.source import opened

    wide = opened(source, about["context"])
    _need_equal(source, wide.model.decoder.vocabulary, about["vocabulary"])
    return wide.logits(windows)


def _need_equal(source: Path, wanted: int, got: int) -> None:
    if wanted != got:
        raise InputError(
            f"expected a bundle with the {wanted} tokens of {source}, got one with {got}: is this its source?"
        )


def _as_json(found: Likeness) -> dict[str, Any]:
    return {
        "tokens": found.tokens, "share_of_range": found.share, "agreement": found.agreement,
        "divergence": found.divergence, "perplexity": {"source": found.expected, "bundle": found.perplexity},
        "perplexity_rise": found.rise, "perplexity_error": found.error,
    }  # fmt: skip


def _print(found: Likeness) -> None:
    shown = table("", "logits", "", right=("",))
    shown.add_row("largest difference", f"{found.share:.2g} of the range")
    shown.add_row("same greatest token", f"{found.agreement:.2%}")
    shown.add_row("divergence", f"{found.divergence:.2g} nats a token")
    shown.add_row("perplexity, source", f"{found.expected:.4f}")
    shown.add_row("perplexity, bundle", f"{found.perplexity:.4f} ({found.rise:+.2%} ± {found.error:.2%})")
    console().print(shown)
