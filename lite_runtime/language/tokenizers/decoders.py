"""Ids to text: what each token adds, and bytes to characters."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping

from lite_runtime.bundle.refusal import refuse, show
from lite_runtime.frozen import NamedTuple
from lite_runtime.language.tokenizers.components import Kind, settings
from lite_runtime.language.tokenizers.description import SECTION, Description

__all__ = ["Decoder", "decoder_of"]

_EACH = "msedge.each"
"""An error handler: a replacement character for every byte that is no part of a character."""
codecs.register_error(_EACH, lambda error: ("\ufffd" * (error.end - error.start), error.end))  # type: ignore[attr-defined]


class Decoder(NamedTuple):
    """How tokens become text.

    adds: bytes that a token adds, by its stored bytes, whether it is one of the 256 tokens of bytes, and whether it is
    the first. errors: of decoding UTF-8. strip: whether a space at the beginning of a text is left out.
    """

    adds: Callable[[bytes, bool, bool], bytes]
    errors: str = "replace"
    strip: bool = False


def decoder_of(description: Description) -> Decoder:
    """The decoder of a description; raises BundleError for one that this version does not know."""
    row = description.decoder
    name = row.get("type")
    if type(name) is not str or name not in DECODERS:
        refuse(f"{SECTION}, decoder", f"one of {', '.join(DECODERS)}", show(name))
    kind = DECODERS[name]
    made: Decoder = kind.make(**settings(row, kind.fields, f"{SECTION}, decoder"))
    return made


def _of_bytes() -> Decoder:
    return Decoder(lambda token, is_byte, first: token)


def _of_pieces(replacement: str, strip: str, byte_fallback: bool) -> Decoder:
    """SentencePiece: a sign for spaces; tokens such as <0x0A> are one byte."""
    if len(replacement) != 1:
        refuse(f"{SECTION}, decoder", "one character as replacement", show(replacement))
    sign = replacement.encode("utf-8")

    def adds(token: bytes, is_byte: bool, first: bool) -> bytes:
        if is_byte and byte_fallback:
            return bytes([int(token[3:5], 16)])
        return token.replace(sign, b"" if first and strip == "token" else b" ")

    return Decoder(adds, _EACH, strip == "space")


def _of_word_pieces(prefix: str, cleanup: bool) -> Decoder:
    start = prefix.encode("utf-8")

    def adds(token: bytes, is_byte: bool, first: bool) -> bytes:
        if not first:
            token = token[len(start) :] if token.startswith(start) else b" " + token
        if cleanup:
            for old, new in _CLEANUP:
                token = token.replace(old, new)
        return token

    return Decoder(adds)


_CLEANUP = (
    (b" .", b"."), (b" ?", b"?"), (b" !", b"!"), (b" ,", b","), (b" ' ", b"'"), (b" n't", b"n't"), (b" 'm", b"'m"),
    (b" do not", b" don't"), (b" 's", b"'s"), (b" 've", b"'ve"), (b" 're", b"'re"),
)  # fmt: skip


def _joined() -> Decoder:
    return Decoder(lambda token, is_byte, first: token if first else b" " + token)


DECODERS: Mapping[str, Kind] = {
    "ByteLevel": Kind({}, _of_bytes),
    "Pieces": Kind({"replacement": str, "strip": ("nothing", "space", "token"), "byte_fallback": bool}, _of_pieces),
    "WordPiece": Kind({"prefix": str, "cleanup": bool}, _of_word_pieces),
    "Joined": Kind({}, _joined),
}
"""Pieces: `strip` is what is left out at the beginning, one space, or every sign for a space in the first token."""


class Detokenizer:
    """Text from ids as they come: never half a character.

    Bytes are held back until they are a complete character or certainly none; then a replacement character (U+FFFD)
    stands for them. What all calls give, joined, is what `Tokenizer.decode` gives for all ids.
    """

    def __init__(self, decoder: Decoder, token: Callable[[int], tuple[bytes, bool] | None]) -> None:
        self._decoder, self._token = decoder, token
        self._bytes = codecs.getincrementaldecoder("utf-8")(decoder.errors)
        self._first = True
        self._strip = decoder.strip

    def feed(self, *ids: int) -> str:
        """The text that these ids complete; "" where more bytes are needed. Raises InputError for an id that the
        tokenizer does not have."""
        return self._text(ids, False)

    def finish(self) -> str:
        """The rest, at the end: bytes still held back give replacement characters. Afterwards a new text begins."""
        rest = self._text((), True)
        self._bytes.reset()
        self._first, self._strip = True, self._decoder.strip
        return rest

    def _text(self, ids: tuple[int, ...], final: bool) -> str:
        data = bytearray()
        for number in ids:
            token = self._token(number)
            if token is not None:
                data += self._decoder.adds(*token, self._first)
                self._first = False
        text = self._bytes.decode(bytes(data), final)
        if self._strip and text:
            self._strip = False
            text = text.removeprefix(" ")
        return text
