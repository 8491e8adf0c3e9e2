"""Adapters: their files, their slots, and answers with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lite_runtime
from lite_runtime import bundle
from lite_runtime.errors import BundleError, InputError
from lite_runtime.graph import Array
from lite_runtime.language import Adapter, LanguageModel, Piece
from lite_runtime.language.adapters import NoSlot, Slots
from lite_runtime.language.engine import Engine, Part
from lite_runtime.learning import checkpoint
from tests.language.talking import talking, talking_bundle
from tests.language.tiny import FACTOR, RANK, Tiny

TINY, EXACT = Tiny(), Tiny(integers=False, cache="float32")
TEXT = np.random.default_rng(5).integers(0, 300, 400).tolist()
DIGEST = bundle.read(talking_bundle()).digest
FREE: dict[str, Any] = {"temperature": 1.2, "seed": 4, "max_tokens": 40}


def engine(tiny: Tiny = TINY, adapters: int = 4, **settings: Any) -> Engine:
    return Engine(lite_runtime.load(tiny.bundle(), **settings), adapters=adapters)


def talkers(count: int) -> list[Adapter]:
    """Adapters of the model that talks, which are strong enough to change every text."""
    return [Adapter(TINY.adapter(seed).arrays, DIGEST) for seed in range(count)]


def all_logits(one: Engine, tokens: list[int], slot: int = -1) -> Array:
    sequence = one.start(slot)
    (logits,) = one.run([Part(sequence, tokens, len(tokens))])
    one.end(sequence)
    return logits


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def reused(pieces: list[Piece]) -> int:
    found = pieces[-1].statistics
    assert found is not None
    return found.reused


# -- the engine -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("rank", [1, RANK])
def test_logits_are_those_of_merged_weights(backend: str, rank: int) -> None:
    one, adapter = engine(EXACT, backend=backend), EXACT.adapter(1, rank)
    want, plain = EXACT.merged(adapter).logits(TEXT[:30]), EXACT.logits(TEXT[:30])
    got = all_logits(one, TEXT[:30], one.attach(adapter))
    assert np.abs(got - want).max() < 2e-4 * np.ptp(want)
    assert np.abs(plain - want).max() > 0.1 * np.ptp(want)


@pytest.mark.parametrize("threads", [1, 2])
def test_texts_of_one_run_are_as_alone_to_the_bit(threads: int) -> None:
    one = engine(threads=threads)
    slots = [-1, *(one.attach(TINY.adapter(seed)) for seed in range(3)), -1]
    texts = [TEXT[:9], TEXT[40:42], TEXT[50:180], TEXT[7:30], TEXT[100:117]]
    alone, sequences = [], []
    for text, slot in zip(texts, slots, strict=True):
        sequence, rows = one.start(slot), []
        for part in (text, [17], [18]):
            (logits,) = one.run([Part(sequence, part)])
            rows.append(logits.tobytes())
        alone.append(rows)
        one.end(sequence)
        sequences.append(one.start(slot))
    for step, parts in enumerate((texts, [[17]] * 5, [[18]] * 5)):
        together = one.run([Part(s, t) for s, t in zip(sequences, parts, strict=True)])
        assert [logits.tobytes() for logits in together] == [rows[step] for rows in alone]
    assert len({rows[2] for rows in alone}) == 5


def test_everything_is_native() -> None:
    one = engine()
    one.run([Part(one.start(one.attach(TINY.adapter(0))), [1, 2, 3])])
    binding = one._binding(4, 1, 1, "adapted")
    assert not binding.executor.bound(binding.inputs).reference


def test_forks_have_the_adapter_and_slots_are_used_again() -> None:
    one = engine(adapters=1)
    first = one.start(one.attach(TINY.adapter(0)))
    one.run([Part(first, TEXT[:20])])
    other = one.fork(first)
    assert other.adapter == first.adapter == 0
    with pytest.raises(NoSlot, match="all 1 slots"):
        one.attach(TINY.adapter(1))
    one.detach(0)
    with pytest.raises(InputError, match="slot 0, got none"):
        one.run([Part(other, [5])])
    with pytest.raises(InputError, match="expected a slot with an adapter, got 0"):
        one.detach(0)
    assert one.attach(TINY.adapter(1)) == 0
    want = all_logits(engine(adapters=3), TEXT[:9], -1)
    assert all_logits(one, TEXT[:9], -1).tobytes() == want.tobytes() != all_logits(one, TEXT[:9], 0).tobytes()


@pytest.mark.parametrize("change", ["predict only", "rank", "targets", "factor", "other inputs"])
def test_a_bundle_with_a_damaged_description(change: str) -> None:
    about, graphs = dict(TINY.about), TINY.graphs()
    if change == "predict only":
        del graphs["adapted"]
    elif change == "other inputs":
        graphs["adapted"] = graphs["predict"]
    else:
        about["adapters"] = {**about["adapters"], change: "much" if change == "factor" else 0}
    data = bundle.write(None, graphs, metadata={"language": about})
    with pytest.raises(InputError, match=r"adapters.*convert (the model|it) again"):
        Engine(lite_runtime.load(data))


@pytest.mark.parametrize("adapters", [-1, True, 2.0, 1 << 20])
def test_numbers_of_slots_that_are_none(adapters: Any) -> None:
    with pytest.raises(InputError, match="adapters: expected a number of slots from 0"):
        engine(adapters=adapters)


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_file_has_the_arrays_and_the_model(tmp_path: Path) -> None:
    adapter = TINY.adapter(3, 2)
    adapter.save(tmp_path / "a.msstate")
    again = Adapter.load(tmp_path / "a.msstate")
    assert (again.model, again.digest) == (adapter.model, adapter.digest)
    assert again.digest != TINY.adapter(4, 2).digest
    assert again.flat(TINY.about).tobytes() == adapter.flat(TINY.about).tobytes()
    checkpoint.write(tmp_path / "b.msstate", adapter.arrays, adapter.model, {"steps": 7})
    assert Adapter.load(tmp_path / "b.msstate").digest == adapter.digest
    data = bytearray((tmp_path / "a.msstate").read_bytes())
    data[-70] ^= 1
    with pytest.raises(BundleError):
        Adapter.load(bytes(data))


def test_the_numbers_of_an_adapter() -> None:
    adapter, at = TINY.adapter(3, 2), 0
    flat = adapter.flat(TINY.about)
    for target in TINY.targets:
        a, b = (adapter.arrays[f"{target.name}.lora_{part}"] for part in "ab")
        middle, end = at + RANK * target.inputs, at + RANK * (target.inputs + target.outputs)
        down, up = flat[at:middle].reshape(RANK, -1), flat[middle:end].reshape(RANK, -1)
        np.testing.assert_array_equal(down, np.concatenate([a.T, np.zeros((1, target.inputs), np.float32)]))
        np.testing.assert_array_equal(up[:2], b * np.float32(FACTOR))
        assert not up[2].any()
        at = end
    assert flat.size == at


QUERY = "layer.0.query.lora_"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({QUERY + "a": None}, r"12 arrays that this model names, got one that lacks layer\.0\.query\.lora_a"),
        ({"layer.9.query.lora_a": np.zeros((2, 2), np.float32)}, r"has unknown layer\.9\.query\.lora_a"),
        ({QUERY + "a": np.zeros((63, 3), np.float32)}, r"expected shapes \[64, rank\] and \[rank, 64\], got \[63, 3\]"),
        ({QUERY + "a": np.zeros(64, np.float32)}, "expected shapes"),
        ({QUERY + "b": np.zeros((2, 64), np.float32)}, r"got \[64, 3\] and \[2, 64\]"),
        ({QUERY + "a": np.zeros((64, 0), np.float32), QUERY + "b": np.zeros((0, 64), np.float32)}, "expected shapes"),
        ({QUERY + "a": np.zeros((64, 3))}, "expected float32, got float64"),
        ({QUERY + "a": np.full((64, 3), np.nan, np.float32)}, "got infinity or NaN"),
        ({QUERY + "b": np.full((3, 64), np.inf, np.float32)}, "got infinity or NaN"),
        (
            {QUERY + "a": np.zeros((64, 4), np.float32), QUERY + "b": np.zeros((4, 64), np.float32)},
            "a rank of at most 3, as the bundle has, got 4",
        ),
    ],
)
def test_adapters_that_do_not_fit_are_refused(change: dict[str, Array | None], words: str) -> None:
    adapter = TINY.adapter(0)
    arrays = {name: array for name, array in ({**adapter.arrays, **change}).items() if array is not None}
    with pytest.raises(InputError, match=words):
        engine().attach(Adapter(arrays, adapter.model))


def test_adapters_of_other_models_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected an adapter of this model, bundle .*, got one of bundle 77777777"):
        talking().generate("a", adapter=Adapter(TINY.adapter(0).arrays, "7" * 64))
    tiny = Tiny()
    about = {key: value for key, value in tiny.about.items() if key != "adapters"}
    data = bundle.write(None, {"predict": tiny.graph}, metadata={"language": about})
    model = LanguageModel.load(data)
    assert model.engine.slots == 0
    with pytest.raises(InputError, match=r"this model takes no adapters; convert it with adapters"):
        model.generate(tokens=[1], adapter=Adapter(tiny.adapter(0).arrays, model.digest))


# -- slots ------------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_without_texts_makes_way() -> None:
    one, gone = engine(adapters=2), list[int]()
    slots, (a, b, c) = Slots(one, gone.append), [TINY.adapter(seed) for seed in range(3)]
    assert [slots.take(None), slots.find(None), len(slots)] == [-1, -1, 0]
    places = [slots.take(a), slots.take(b)]
    assert places == [0, 1] and slots.find(a) == 0 and not slots.room(c) and slots.room(a)
    with pytest.raises(NoSlot, match="texts use all 2 places"):
        slots.take(c)
    slots.give_back(1)
    slots.give_back(-1)
    assert slots.room(c) and slots.take(c) == 1 and gone == [1] and slots.find(b) is None
    slots.give_back(0)
    slots.give_back(1)
    slots.take(a)
    slots.give_back(0)
    assert slots.take(b) == 1 and gone == [1, 1] and slots.find(c) is None
    slots.give_back(1)
    with pytest.raises(InputError, match="this model"):
        slots.take(Adapter(a.arrays, "0" * 64))
    assert slots.take(c) in (0, 1)


# -- answers ----------------------------------------------------------------------------------------------------------


def test_answers_with_adapters_and_without() -> None:
    model, adapters = talking(), [None, *talkers(3)]
    alone = [text_of(list(talking().generate("Once upon", adapter=a, **FREE))) for a in adapters]
    assert len(set(alone)) == 4
    running = [model.generate("Once upon", adapter=a, **FREE) for a in adapters]
    got = [""] * 4
    for _ in range(40):
        for i, pieces in enumerate(running):
            got[i] += next(pieces).text
    assert got == alone


def test_prompts_are_reused_under_the_same_adapter_only() -> None:
    model, (a, b) = talking(), talkers(2)
    prompt = "A system text that all share. Question"
    first, other, none, again = (list(model.generate(prompt, adapter=x, **FREE)) for x in (a, b, None, a))
    length = len(model.tokens(prompt))
    assert [reused(pieces) for pieces in (first, other, none, again)] == [0, 0, 0, length - 1]
    assert text_of(again) == text_of(first)


def test_a_slot_that_another_adapter_gets_keeps_no_prompt() -> None:
    model, (a, b) = talking(adapters=1), talkers(2)
    prompt = "A system text that all share. Question"
    for adapter in (a, b, a, b):
        want = text_of(list(talking().generate(prompt, adapter=adapter, **FREE)))
        pieces = list(model.generate(prompt, adapter=adapter, **FREE))
        assert text_of(pieces) == want and reused(pieces) == 0
    model.forget()
    assert model.engine.pages.free == model.engine.pages.count


def test_slots_that_answers_use_are_not_taken() -> None:
    model, (a, b) = talking(adapters=1), talkers(2)
    pieces = model.generate("Once", adapter=a, **FREE)
    first = next(pieces)
    with pytest.raises(NoSlot, match="adapters="):
        list(model.generate("Once", adapter=b, **FREE))
    rest = list(pieces)
    assert first.text + text_of(rest) == text_of(list(talking().generate("Once", adapter=a, **FREE)))
    assert text_of(list(model.generate("Once", adapter=b, **FREE)))


@pytest.mark.parametrize("speculate", ["lookup", "draft"])
def test_speculation_does_not_change_texts_with_adapters(speculate: Any) -> None:
    draft = talking()
    model, adapter = talking(draft=draft), talkers(1)[0]
    options: dict[str, Any] = {"tokens": TEXT[:20] * 3, "max_tokens": 80, "adapter": adapter}
    plain = text_of(list(model.generate(**options)))
    pieces = list(model.generate(speculate=speculate, **options))
    assert text_of(pieces) == plain != text_of(list(model.generate(tokens=TEXT[:20] * 3, max_tokens=80)))
    found = pieces[-1].statistics
    assert found is not None and found.proposed > 0


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_session_has_its_adapter(tmp_path: Path) -> None:
    model, (a, b) = talking(adapters=1), talkers(2)
    prompt = "A long text before. "
    with pytest.raises(InputError, match="a session or an adapter"):
        model.generate("a", session=model.session(adapter=a), adapter=a)
    session = model.session(adapter=a)
    first = text_of(list(session.generate(prompt, **FREE)))
    assert first == text_of(list(talking().generate(prompt, adapter=a, **FREE)))
    list(model.generate(prompt, adapter=b, **FREE))  # takes the slot
    other = session.fork()
    pieces = list(other.generate(prompt + first, **FREE))
    assert reused(pieces) > len(model.tokens(prompt))
    assert text_of(pieces) == text_of(list(talking().generate(prompt + first, adapter=a, **FREE)))
    session.save(tmp_path / "a.mssession")
    other.close()
    session.close()
    model.forget()
    assert model.engine.pages.free == model.engine.pages.count
    again = model.restore(tmp_path / "a.mssession", adapter=a)
    continued = list(again.generate(prompt + first, **FREE))
    assert reused(continued) > len(model.tokens(prompt)) and text_of(continued) == text_of(pieces)
    for wrong, words in ((b, f"{a.digest[:16]}…, got adapter {b.digest[:16]}…"), (None, "got no adapter")):
        with pytest.raises(InputError, match=f"computed with adapter .*{words}"):
            model.restore(tmp_path / "a.mssession", adapter=wrong)
    model.session().save(tmp_path / "b.mssession")
    with pytest.raises(InputError, match="computed with no adapter, got adapter"):
        model.restore(tmp_path / "b.mssession", adapter=a)


def test_a_session_whose_adapter_made_way_is_closed() -> None:
    """Its pages are of no use to others: they are free at once."""
    model, (a, b) = talking(adapters=1), talkers(2)
    session = model.session(adapter=a)
    list(session.generate("A text", **FREE))
    list(model.generate("A text", adapter=b, **FREE))
    model.forget()
    session.close()
    assert model.engine.pages.free == model.engine.pages.count
