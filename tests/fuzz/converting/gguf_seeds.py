"""Small GGUF files of every family and type, with and without a tokenizer."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.converter.frontends.decoders import gguf_bytes
from tests.converter.frontends.decoders.checkpoints import CASES, config, gguf_file, tensors
from tests.converter.frontends.decoders.gguf_bytes import array, scalar
from tests.converter.frontends.decoders.test_conversion import metadata, stored

__all__ = ["files", "ran"]

_SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "vocab_size": 20, "max_position_embeddings": 64,
}  # fmt: skip
_KINDS = ("F32", "Q8_0", "Q4_0", "F16", "Q5_1")


def files() -> Iterator[bytes]:
    """The files; the same on every machine."""
    with tempfile.TemporaryDirectory() as work:
        for i, case in enumerate(CASES):
            settings = config(case, **_SMALL, **({"head_dim": 16} if "head_dim" in CASES[case] else {}))
            path = gguf_file(Path(work) / f"{i}", settings, tensors(settings), _KINDS[i % len(_KINDS)])
            yield path.read_bytes()
    yield gguf_bytes.file({**metadata(block_count=scalar(4, 1)), **_tokenizer()}, _first_layer([3, 12, 13, 14, 8]))


def _first_layer(kinds: list[int]) -> list[gguf_bytes.Stored]:
    return [tensor for tensor in stored(kinds) if not str(tensor.name).startswith("blk.1")]


def _tokenizer() -> dict[str, bytes]:
    letters = [*"abcdefgh", *(f"<|{i}|>" for i in range(3)), "ab", "abc"]
    names = [*letters, *(f"[{i}]" for i in range(90 - len(letters)))]
    return {
        "tokenizer.ggml.model": scalar(8, "gpt2"),
        "tokenizer.ggml.pre": scalar(8, "smollm"),
        "tokenizer.ggml.tokens": array(8, names),
        "tokenizer.ggml.token_type": array(5, [3 if name.startswith("<|") else 1 for name in names]),
        "tokenizer.ggml.merges": array(8, ["a b", "ab c"]),
        "tokenizer.ggml.bos_token_id": scalar(4, 8),
        "tokenizer.ggml.eos_token_id": scalar(4, 9),
        "tokenizer.chat_template": scalar(8, "{{ messages[0].content }}"),
    }


def ran(bundle: bytes) -> bool:
    """Whether a bundle's language model ran on a few tokens. Errors other than MsedgeError pass through."""
    import lite_runtime
    from lite_runtime import MsedgeError
    from lite_runtime.language.engine import Engine, Part

    try:
        engine = Engine(lite_runtime.load(bundle, limit=1 << 28), 32)
        sequence = engine.start()
        engine.run([Part(sequence, [0, 1, 2], 2)])
        engine.run([Part(sequence, [3])])
    except MsedgeError:
        return False
    return True
