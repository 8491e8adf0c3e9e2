"""Tokens through the engine: one at a time, in chunks, of several sequences; forked, cut, and without room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.errors import InputError
from lite_runtime.graph import Array, Graph, Value
from lite_runtime.language.engine import Engine, Part
from lite_runtime.language.pages import OutOfPages, Pages
from tests.language.tiny import Sizes, Tiny

TINY, EXACT, SMALL = Tiny(), Tiny(integers=False, cache="float32"), Tiny(integers=False, cache="int8")
TEXT = np.random.default_rng(5).integers(0, 300, 400).tolist()


def engine(tiny: Tiny = TINY, *, positions: int | None = None, **settings: Any) -> Engine:
    return Engine(lite_runtime.load(tiny.bundle(), **settings), positions)


def all_logits(one: Engine, tokens: list[int]) -> Array:
    sequence = one.start()
    (logits,) = one.run([Part(sequence, tokens, len(tokens))])
    one.end(sequence)
    return logits


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("length", [1, 5, 70])
def test_float_activations_are_numpys(backend: str, length: int) -> None:
    want = EXACT.logits(TEXT[:length])
    got = all_logits(engine(EXACT, backend=backend), TEXT[:length])
    assert np.abs(got - want).max() < 1e-4 * (want.max() - want.min())


def test_integer_activations_are_close() -> None:
    want, got = TINY.logits(TEXT[:80]), all_logits(engine(), TEXT[:80])
    assert np.abs(got - want).mean() < 0.02 * (want.max() - want.min())


def test_caches_of_integers_are_close() -> None:
    """In half the memory."""
    one, want = engine(SMALL), SMALL.logits(TEXT[:80])
    assert np.abs(all_logits(one, TEXT[:80]) - want).mean() < 0.01 * (want.max() - want.min())
    assert one.bytes_per_token == 2 * 2 * 2 * 18 and engine().bytes_per_token == 2 * 2 * 2 * 32


@pytest.mark.parametrize("length", [5, 70])
def test_caches_of_integers_as_in_the_reference(length: int) -> None:
    want, got = (all_logits(engine(SMALL, backend=backend), TEXT[:length]) for backend in ("reference", "native"))
    assert np.abs(got - want).max() < 2e-2 * (want.max() - want.min())


def test_everything_is_native() -> None:
    one = engine()
    one.run([Part(one.start(), [1, 2, 3])])
    assert not one._binding(4, 1, 1).executor.bound(one._binding(4, 1, 1).inputs).reference


def test_few_sizes_of_runs_are_planned_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    one = engine(positions=4096)
    for rows, sequences, wanted in ((3, 2, 1), (5, 1, 5), (100, 3, 2), (256, 256, 1)):
        inputs = one._binding(rows, sequences, wanted).inputs
        assert inputs["input_ids"].size >= rows and inputs["logits_rows"].size >= wanted
        assert len(inputs["past_seqlens"]) == len(inputs["block_table"]) >= sequences
    assert one._binding(190, 14, 3) is one._binding(192, 5, 11) is not one._binding(192, 5, 17)
    monkeypatch.setattr("lite_runtime.language.engine.BINDINGS", 3)
    one = engine()
    want = all_logits(one, TEXT[:9])
    for length in (20, 40, 60, 80):
        all_logits(one, TEXT[:length])
    assert len(one._bindings) == 3
    assert all_logits(one, TEXT[:9]).tobytes() == want.tobytes()


@pytest.mark.parametrize("tiny", [TINY, SMALL], ids=["float16", "int8"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_results_do_not_depend_on_how_tokens_were_divided(threads: int, tiny: Tiny) -> None:
    one = engine(tiny, threads=threads)
    whole = all_logits(one, TEXT[:300])
    sequence, rows, at = one.start(), [], 0
    for count in (1, 2, 30, 1, 100, 7, 100, 59):
        (logits,) = one.run([Part(sequence, TEXT[at : at + count], count)])
        rows.append(logits)
        at += count
    np.testing.assert_allclose(np.concatenate(rows), whole, rtol=1e-3, atol=1e-3)


def test_lent_logits_are_those_of_a_copy() -> None:
    """Also of parts that take several runs, whose first logits would be overwritten."""
    one, other = engine(positions=2048), engine(positions=2048)
    parts = [(TEXT[:1], 1), (TEXT[:300], 290), (TEXT[9:30], 0), (TEXT[5:70], 3)]
    for _ in range(2):
        lent = one.run([Part(one.start(), *part) for part in parts], lent=True)
        copies = other.run([Part(other.start(), *part) for part in parts])
        for a, b in zip(lent, copies, strict=True):
            np.testing.assert_array_equal(a, b)
    kept = copies[0].copy()
    other.run([Part(other.start(), TEXT[20:21])])
    np.testing.assert_array_equal(copies[0], kept)


def test_sequences_in_one_run_are_independent() -> None:
    one = engine()
    texts = [TEXT[:9], TEXT[40:41], TEXT[50:180], TEXT[7:30]]
    alone = [all_logits(one, text)[-2:] for text in texts]
    sequences = [one.start() for _ in texts]
    together = one.run([Part(s, t, min(2, len(t))) for s, t in zip(sequences, texts, strict=True)])
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    # And once more, one token each.
    alone = [all_logits(one, [*text, 17])[-1:] for text in texts]
    together = one.run([Part(s, [17]) for s in sequences])
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tiny", [TINY, SMALL], ids=["float16", "int8"])
def test_forks_share_pages_until_they_are_written(tiny: Tiny) -> None:
    one = engine(tiny, positions=160)
    first = one.start()
    one.run([Part(first, TEXT[:100])])
    free = one.pages.free
    second = one.fork(first)
    assert one.pages.free == free
    one.run([Part(first, [5]), Part(second, [9])])
    assert one.pages.free == free - 1  # the page that both had begun
    (a,), (b,) = one.run([Part(first, [1])]), one.run([Part(second, [1])])
    np.testing.assert_allclose(a, all_logits(engine(tiny), [*TEXT[:100], 5, 1])[-1:], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(b, all_logits(engine(tiny), [*TEXT[:100], 9, 1])[-1:], rtol=1e-3, atol=1e-3)
    one.end(first)
    one.end(second)
    assert one.pages.free == one.pages.count


def test_a_cut_sequence_continues_from_there() -> None:
    one = engine()
    sequence = one.start()
    one.run([Part(sequence, TEXT[:90])])
    one.cut(sequence, 37)
    (got,) = one.run([Part(sequence, TEXT[37:60])])
    np.testing.assert_allclose(got, all_logits(one, TEXT[:60])[-1:], rtol=1e-3, atol=1e-3)


def test_without_room_nothing_changes() -> None:
    one = engine(positions=64)
    first, second = one.start(), one.start()
    one.run([Part(first, TEXT[:40])])
    before = one.pages.free
    with pytest.raises(OutOfPages, match="positions="):
        one.run([Part(second, TEXT[:30])])
    assert (one.pages.free, len(second), second.pages) == (before, 0, [])
    with pytest.raises(OutOfPages):
        one.run([Part(first, TEXT[:8]), Part(second, TEXT[:30])])
    assert (one.pages.free, len(first), len(first.pages), second.pages) == (before, 40, 3, [])
    one.run([Part(first, TEXT[:20])])


@pytest.mark.parametrize(
    ("tokens", "words"),
    [([], "expected tokens"), ([-1], "0 to 299"), ([300], "0 to 299"), (list(range(299)) * 2, "context has 512")],
)
def test_wrong_tokens_are_errors(tokens: list[int], words: str) -> None:
    one = engine()
    with pytest.raises(InputError, match=words):
        one.run([Part(one.start(), tokens)])
    sequence = one.start()
    with pytest.raises(InputError, match="once in a run"):
        one.run([Part(sequence, [1]), Part(sequence, [2])])


def test_a_bundle_that_holds_no_language_model() -> None:
    with pytest.raises(InputError, match="no language model"):
        Engine(lite_runtime.load(bundle.write(None, {"predict": TINY.graph})))


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": "many"}, {"context": True}, {"context": 0}, {"context": 1 << 25}, {"context": 5.0},
        {"vocabulary": True}, {"vocabulary": 301}, {"vocabulary": -1}, {"vocabulary": None},
        {"stop": 2}, {"stop": [300]}, {"stop": [True]}, {"stop": [-1]}, {"stop": ["</s>"]}, {"stop": [2] * 1000},
        {"bos": 300}, {"bos": True}, {"bos": "<s>"}, {"template": 5},
        {"template": ["{{ a }}"]},
    ],
)  # fmt: skip
def test_metadata_that_are_wrong(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=rf"not complete \(.*{name}"):
        Engine(lite_runtime.load(TINY.bundle(**wrong)))


ALONE = {name: value for name, value in TINY.about.items() if name != "adapters"}
"""What a bundle says that has no graph with adapters."""


def graph_with(**changes: Value) -> bytes:
    """The tiny model with inputs of other types, by name; further ones are added."""
    graph, left = TINY.graph, dict(changes)
    inputs = [left.pop(v.name.replace(".", "_"), v) for v in graph.inputs]
    made = Graph((*inputs, *left.values()), graph.outputs, graph.nodes, graph.constants)
    return bundle.write(None, {"predict": made}, metadata={"language": ALONE})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"more": Value("more", "float32", ("rows",))}, "one of values for each layer, got more"),
        ({"more": Value("key_cache.9", "float16", ("blocks", 2, 16, 16))}, "value_cache.9"),
        ({"key_cache_1": Value("key_cache.1", "float32", ("blocks", 2, 16, 16))}, "same type in all layers"),
        ({"value_cache_1": Value("value_cache.1", "float16", ("blocks", 4, 16, 8))}, "a cache of pages|same type"),
        ({"key_cache_0": Value("key_cache.0", "float16", ("blocks", 2, 16, "n"))}, "a cache of pages"),
        ({"key_cache_0": Value("key_cache.0", "float16", (4, 2, 16, 16))}, "a cache of pages"),
        ({"key_cache_0": Value("key_cache.0", "int8", ("blocks", 2, 18, 16))}, "same type in all layers"),
        ({"key_cache_0": Value("key_cache.0", "int8", ("blocks", 2, 2, 16))}, "a cache of pages"),
        ({"key_cache_0": Value("key_cache.0", "int16", ("blocks", 2, 16, 16))}, "a cache of pages"),
        ({"past_seqlens": Value("past_seqlens", "int32", (1,))}, "int32 of open sizes"),
        ({"block_table": Value("block_table", "int32", ("sequences",))}, "int32 of open sizes"),
        ({"input_ids": Value("input_ids", "int64", ("rows",))}, "int32 of open sizes"),
    ],
)
def test_graphs_that_do_not_take_what_an_engine_gives(changes: dict[str, Value], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Engine(lite_runtime.load(graph_with(**changes)))


def test_logits_of_another_width_than_said() -> None:
    """Where the graph does not say it, the first run notices."""
    graph = TINY.graph
    for shape in (("wanted", None), None):
        open_ = Graph(graph.inputs, (Value("logits", "float32", shape),), graph.nodes, graph.constants)
        right = bundle.write(None, {"predict": open_}, metadata={"language": ALONE})
        one = Engine(lite_runtime.load(right))
        one.run([Part(one.start(), [1, 2])])
        wrong = bundle.write(None, {"predict": open_}, metadata={"language": {**ALONE, "vocabulary": 200}})
        one = Engine(lite_runtime.load(wrong))
        with pytest.raises(InputError, match="expected logits of 200 tokens"):
            one.run([Part(one.start(), [1, 2])])


@pytest.mark.parametrize("positions", [0, -1, True, "many", 2.0])
def test_wrong_positions(positions: Any) -> None:
    with pytest.raises(InputError, match="positions: expected"):
        engine(positions=positions)


def test_caches_that_do_not_fit_the_memory() -> None:
    with pytest.raises(InputError, match="no memory for caches of"):
        engine(positions=1 << 39)


def test_a_huge_context_takes_no_memory_that_the_caches_do_not_have() -> None:
    one = Engine(lite_runtime.load(TINY.bundle(context=1 << 24)), 64)
    one.run([Part(one.start(), TEXT[:40])])
    assert one.working_bytes < 1 << 20
    with pytest.raises(OutOfPages):
        one.run([Part(one.start(), TEXT[:65])])


def test_memory_does_not_grow_with_the_number_of_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lite_runtime.language.engine.BINDINGS", 8)
    one, sizes = engine(positions=2048), [0]
    for _ in range(2):
        for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
            for wanted in (1, 2, 4, 8):
                sequence = one.start()
                one.run([Part(sequence, TEXT[:rows], min(rows, wanted))])
                one.end(sequence)
        assert next(reversed(one._bindings))[1] == 96
        assert len(one._bindings) == 8
        sizes.append(one.working_bytes)
    caches = sum(cache.nbytes for cache in one.caches.values())
    assert caches < sizes[2] <= sizes[1]
    one.run([Part(one.start(), TEXT[:64], 1)])
    assert next(reversed(one._bindings))[1] == 64  # used again: the last one to go


def test_larger_heads_and_other_groups() -> None:
    tiny = Tiny(Sizes(layers=1, heads=6, kv_heads=1, size=32), integers=False)
    want, got = tiny.logits(TEXT[:50]), all_logits(engine(tiny), TEXT[:50])
    assert np.abs(got - want).max() < 2e-3 * (want.max() - want.min())


def test_pages_by_random_steps() -> None:
    rng, pages = np.random.default_rng(0), Pages(20)
    held: list[list[int]] = []
    for _ in range(2000):
        kind = rng.integers(3)
        if kind == 0:
            count = int(rng.integers(0, 6))
            if count <= pages.free:
                held.append(pages.take(count))
            else:
                with pytest.raises(OutOfPages):
                    pages.take(count)
        elif held and kind == 1:
            held.append(list(held[rng.integers(len(held))]))
            pages.share(held[-1])
        elif held:
            pages.give_back(held.pop(rng.integers(len(held))))
        used = {page for some in held for page in some}
        assert pages.free == 20 - len(used)
        for page in used:
            assert pages.shared(page) == (sum(page in some for some in held) > 1)
