"""Runs a language model: tokens of several sequences in one run, over caches that they share.

    engine = Engine(model, positions=4096)
    sequence = engine.start()
    (logits,) = engine.run([Part(sequence, tokens)])

Each sequence may have an adapter of its own, which is in one of the engine's slots.

Sizes of a run are rounded up to a few, for which the model is planned: rows beyond the tokens belong to no sequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Items
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import numpy as np

from lite_runtime.errors import InputError
from lite_runtime.frozen import NamedTuple
from lite_runtime.graph import Array, Value, numpy_dtype
from lite_runtime.language.adapters import Adapter, NoSlot, layout
from lite_runtime.language.pages import PAGE, Pages, needed
from lite_runtime.operators.language import SCALE
from lite_runtime.running.executor import Binding
from lite_runtime.running.session import Model

__all__ = ["CHUNK", "KEYS", "SLOTS", "VALUES", "Engine", "Part", "Sequence", "takes_tokens"]

CHUNK = 256
"""Rows of a run, at most: weights are read once for so many tokens."""
BINDINGS = 128
"""Sizes of runs that are kept, with about a megabyte and their working memory each."""
_SIZES = sorted({n for k in range(9) for n in (2**k, 3 * 2**k) if n <= CHUNK})
SLOTS = 16
"""Adapters that an engine can hold unless told otherwise."""
KEYS, VALUES = "key_cache.", "value_cache."
"""How names of caches begin: [pages, heads, size, 16] and [pages, heads, 16, size]."""
_MOST_CONTEXT, _MOST_STOPS = 1 << 24, 256
"""Tokens of a context, and tokens that end a text, of any bundle."""


class Sequence:
    """A text in the caches: its tokens so far, the pages that hold their keys and values, and the slot of the adapter
    that these were computed with, -1 for none."""

    def __init__(self, tokens: Items[int] = (), pages: Items[int] = (), adapter: int = -1) -> None:
        self.tokens, self.pages, self.adapter = list(tokens), list(pages), adapter

    def __len__(self) -> int:
        return len(self.tokens)


class Part(NamedTuple):
    """What a sequence adds to a run: tokens, and for how many of the last of them logits are wanted."""

    sequence: Sequence
    tokens: Items[int]
    wanted: int = 1


class Engine:
    """A model with caches for `positions` tokens in all. Calls must not overlap."""

    def __init__(self, model: Model, positions: int | None = None, adapters: int = SLOTS) -> None:
        """positions: tokens that fit the caches, of all sequences together; the model's context by default. adapters:
        slots. Raises InputError for a bundle without a language model, and for caches that do not fit the memory."""
        self.model = model
        self.about: Mapping[str, Any] = described(model)
        self.context: int = self.about["context"]
        if positions is not None and (type(positions) is not int or not 0 < positions < 1 << 40):
            raise InputError(f"positions: expected a number of tokens from 1, got {positions!r}")
        count = needed(self.context if positions is None else positions)
        self.caches: Mapping[str, Array] = _caches(model, count)
        self.pages = Pages(count)
        self._width = min(needed(self.context), self.pages.count)
        self._bindings: OrderedDict[tuple[str, int, int, int], Binding] = OrderedDict()
        """By signature and size, the least recently used first."""
        self.layout = layout(self.about)
        """Of adapters; None if the model takes none."""
        if type(adapters) is not int or not 0 <= adapters < 1 << 20:
            raise InputError(f"adapters: expected a number of slots from 0, got {adapters!r}")
        self.slots = 0 if self.layout is None else adapters
        try:
            self._adapters = _zeros((self.slots, 0 if self.layout is None else self.layout.size), "float32")
        except MemoryError:
            raise InputError(f"no memory for {adapters} adapters; load it with fewer (adapters=…)") from None
        self._free = list(range(self.slots - 1, -1, -1))

    @property
    def bytes_per_token(self) -> int:
        """Memory of one position in the caches."""
        return sum(int(cache[0].nbytes) for cache in self.caches.values()) // PAGE

    @property
    def bytes_per_adapter(self) -> int:
        """Memory of one slot."""
        return 0 if self.layout is None else 4 * self.layout.size

    @property
    def free_slots(self) -> int:
        """Slots without an adapter."""
        return len(self._free)

    @property
    def working_bytes(self) -> int:
        """Memory beside the weights: the caches and slots, all of them, and the plans and arrays of the sizes that were
        run."""
        held = tuple(self._bindings.values())
        bounds = {bound for one in held for bound in (one.bound, *one.executor.bounds)}
        small = sum(one.inputs[name].nbytes for one in held for name in _PORTS)
        small += sum(array.nbytes for one in held for array in one.outputs.values())
        always = sum(cache.nbytes for cache in self.caches.values()) + self._adapters.nbytes
        arenas = {id(bound.arena): bound.arena.nbytes for bound in bounds}
        return small + always + sum(arenas.values()) + sum(bound.nbytes for bound in bounds)

    def check(self, adapter: Adapter) -> Array:
        """The numbers of a slot. Raises InputError for an adapter that is not of this model, and for a model that takes
        none."""
        digest = self.model.bundle.digest
        if adapter.model != digest:
            raise InputError(
                f"expected an adapter of this model, bundle {digest[:16]}…, got one of bundle {adapter.model[:16]}…; "
                "load that model, or train the adapter with this one"
            )
        return adapter.flat(self.about)

    def attach(self, adapter: Adapter) -> int:
        """Put an adapter into a free slot; its number. Raises InputError like `check`, NoSlot if no slot is free."""
        numbers = self.check(adapter)
        if not self._free:
            raise NoSlot(f"all {self.slots} slots have adapters; detach one, or make an engine with more (adapters=…)")
        slot = self._free.pop()
        self._adapters[slot] = numbers
        return slot

    def detach(self, slot: int) -> None:
        """Free a slot; sequences with this adapter cannot continue."""
        if not self._attached(slot):
            raise InputError(f"expected a slot with an adapter, got {slot}")
        self._free.append(slot)

    def _attached(self, slot: int) -> bool:
        return 0 <= slot < self.slots and slot not in self._free

    def start(self, adapter: int = -1) -> Sequence:
        """A new, empty sequence. adapter: the slot of its adapter, -1 for none."""
        return Sequence(adapter=adapter)

    def fork(self, sequence: Sequence) -> Sequence:
        """A second sequence that begins like this one. No memory is copied: pages are shared until one is written."""
        self.pages.share(sequence.pages)
        return Sequence(sequence.tokens, sequence.pages, sequence.adapter)

    def cut(self, sequence: Sequence, length: int) -> None:
        """Forget all tokens after the first `length`."""
        if not 0 <= length <= len(sequence):
            raise InputError(f"expected a length of 0 to {len(sequence)}, got {length}")
        kept = needed(length)
        self.pages.give_back(sequence.pages[kept:])
        del sequence.pages[kept:], sequence.tokens[length:]

    def end(self, sequence: Sequence) -> None:
        """Forget a sequence: its pages are free unless others share them."""
        self.cut(sequence, 0)

    def copied(self, sequence: Sequence) -> dict[str, Array]:
        """The pages of a sequence, in their order, by cache."""
        pages = sequence.pages[: needed(len(sequence))]
        return {name: cache[pages] for name, cache in self.caches.items()}

    def restored(self, tokens: Items[int], pages: Mapping[str, Array], adapter: int = -1) -> Sequence:
        """A sequence of tokens whose pages `copied` gave; raises OutOfPages if the caches are full."""
        made = Sequence(tokens, self.pages.take(needed(len(tokens))), adapter)
        for name, cache in self.caches.items():
            cache[made.pages] = pages[name]
        return made

    def run(self, parts: Items[Part], *, lent: bool = False) -> list[Array]:
        """Add tokens to sequences; the logits [wanted, vocabulary] of each part's last tokens. Longer parts than a run
        may have are computed in several runs. lent: the next run may overwrite the logits; a copy for each of 16 texts
        takes a quarter of the time of their run. Raises InputError for tokens outside the vocabulary and for more
        tokens than the context has, OutOfPages if the caches are full; sequences are then as before."""
        self._check(parts)
        added: list[int] = []
        found: list[list[Array]] = [[] for _ in parts]
        done = [0] * len(parts)
        try:
            for part in parts:
                added.append(self._room(part))
            while work := _next(parts, done):
                made = self._step(parts, done, work)
                for i, count in work:
                    done[i] += count
                last = all(at == len(part.tokens) for at, part in zip(done, parts, strict=True))
                for (i, _), logits in zip(work, made, strict=True):
                    if len(logits):
                        found[i].append(logits if lent and last else logits.copy())
        except BaseException:
            for part, pages in zip(parts, added, strict=False):
                self._take_back(part.sequence, pages)
            raise
        for part in parts:
            part.sequence.tokens.extend(part.tokens)
        width = self.about["vocabulary"]
        return [_joined(rows) if rows else np.zeros((0, width), np.float32) for rows in found]

    # -- pages ---------------------------------------------------------------------------------------------------------

    def _check(self, parts: Items[Part]) -> None:
        if len({id(part.sequence) for part in parts}) < len(parts):
            raise InputError("expected each sequence once in a run")
        for part in parts:
            if not part.tokens or not 0 <= part.wanted <= len(part.tokens):
                raise InputError(f"expected tokens, and logits of up to {len(part.tokens)} of them, got {part.wanted}")
            if not 0 <= min(part.tokens) <= max(part.tokens) < self.about["vocabulary"]:
                raise InputError(f"expected tokens from 0 to {self.about['vocabulary'] - 1}")
            total = len(part.sequence) + len(part.tokens)
            if total > self.context:
                raise InputError(
                    f"the text would have {total} tokens, and this model's context has {self.context}; shorten it"
                )
            if part.sequence.adapter != -1 and not self._attached(part.sequence.adapter):
                raise InputError(f"expected an adapter in slot {part.sequence.adapter}, got none; attach it first")

    def _room(self, part: Part) -> int:
        """Give a sequence the pages that its new tokens need, the last one its own; the number of new pages."""
        sequence = part.sequence
        full = len(sequence) // PAGE
        alone = len(sequence) % PAGE == 0 or not self.pages.shared(sequence.pages[full])
        count = needed(len(sequence) + len(part.tokens)) - len(sequence.pages)
        pages = self.pages.take(count + (not alone))
        if not alone:
            old, sequence.pages[full] = sequence.pages[full], pages.pop()
            for cache in self.caches.values():
                cache[sequence.pages[full]] = cache[old]
            self.pages.give_back([old])
        sequence.pages += pages
        return count

    def _take_back(self, sequence: Sequence, count: int) -> None:
        if count:
            self.pages.give_back(sequence.pages[-count:])
            del sequence.pages[-count:]

    # -- a run ---------------------------------------------------------------------------------------------------------

    def _step(self, parts: Items[Part], done: Items[int], work: Items[tuple[int, int]]) -> list[Array]:
        """One run of `count` tokens of each part in `work`, from the `done`-th on; the logits that are wanted, as views
        of what the next run overwrites."""
        counts = [count for _, count in work]
        wanted = [_wanted(parts[i], done[i], count) for i, count in work]
        chosen = [parts[i].sequence.adapter for i, _ in work]
        adapted = any(slot >= 0 for slot in chosen)
        binding = self._binding(sum(counts), len(work), sum(wanted), "adapted" if adapted else "predict")
        if adapted:
            slots = binding.inputs["adapter_rows"]
            slots[...] = -1
            slots[: sum(counts)] = np.repeat(chosen, counts)
        ids, ends, past, table, rows = (binding.inputs[name] for name in _PORTS)
        at = row = 0
        ids[...], past[...], rows[...] = 0, 0, 0
        for s, ((i, count), want) in enumerate(zip(work, wanted, strict=True)):
            part = parts[i]
            ids[at : at + count] = part.tokens[done[i] : done[i] + count]
            ends[s], past[s] = at, len(part.sequence) + done[i]
            table[s, : len(part.sequence.pages)] = part.sequence.pages
            at += count
            rows[row : row + want] = np.arange(at - want, at)
            row += want
        ends[len(work) :] = at
        binding()
        logits = binding.outputs["logits"]
        if logits.shape != (len(rows), self.about["vocabulary"]):
            raise InputError(f"expected logits of {self.about['vocabulary']} tokens, got shape {list(logits.shape)}")
        return [logits[a:b] for a, b in pairwise(accumulate(wanted, initial=0))]

    def _binding(self, rows: int, sequences: int, wanted: int, signature: str = "predict") -> Binding:
        key = signature, *_rounded(rows, sequences, wanted)
        if key not in self._bindings:
            sizes: dict[str, tuple[int, ...]] = {
                "input_ids": (key[1],),
                "cumulative_sequence_length": (key[2] + 1,),
                "past_seqlens": (key[2],),
                "block_table": (key[2], self._width),
                "logits_rows": (key[3],),
            }
            more: dict[str, Array] = {}
            if signature == "adapted":
                sizes["adapter_rows"], more = (key[1],), {"adapters": self._adapters}
            small = {name: np.zeros(shape, np.int32) for name, shape in sizes.items()}
            held = {**small, **more, **self.caches}
            while len(self._bindings) >= BINDINGS:
                self._bindings.popitem(last=False)
            self._bindings[key] = self.model.bind(signature=signature, arrays=held)
        self._bindings.move_to_end(key)
        return self._bindings[key]


_PORTS = ("input_ids", "cumulative_sequence_length", "past_seqlens", "block_table", "logits_rows")


def _rounded(rows: int, sequences: int, wanted: int) -> tuple[int, int, int]:
    """The sizes of a run that has room for these. Sequences without rows take no time, so they are rounded up to powers
    of four; logits of as many rows as a sixteenth of the run take little."""
    size = _SIZES[bisect_left(_SIZES, rows)]
    return size, _above(sequences, 2), max(_above(wanted), _above(size) >> 4) if wanted > 1 else 1


def _above(count: int, bits: int = 1) -> int:
    """The next power of two, or of 2 to the power of `bits`."""
    return 1 << -(-(max(count, 1) - 1).bit_length() // bits) * bits


def _wanted(part: Part, done: int, count: int) -> int:
    """How many of `count` tokens after the first `done` have logits that are wanted."""
    return max(0, done + count - max(done, len(part.tokens) - part.wanted))


def _joined(rows: Items[Array]) -> Array:
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


def _next(parts: Items[Part], done: Items[int]) -> list[tuple[int, int]]:
    """The next run: parts, and the number of tokens of each. Short parts are not made to wait for long ones."""
    room, work = CHUNK, []
    for i in sorted(range(len(parts)), key=lambda i: len(parts[i].tokens) - done[i]):
        count = min(len(parts[i].tokens) - done[i], room)
        if count:
            work.append((i, count))
            room -= count
    return work


def described(model: Model) -> Mapping[str, Any]:
    """What a bundle says about its language model. Raises InputError if it holds none, if what it says contradicts
    itself, and if its graph does not take what an engine gives."""
    about = model.bundle.metadata.get("language")
    if not isinstance(about, Mapping):
        raise InputError("this bundle holds no language model; convert one from GGUF or a safetensors folder")
    vocabulary = about.get("vocabulary")
    size = vocabulary if type(vocabulary) is int and 0 < vocabulary < 1 << 31 else 0

    def token(value: Any) -> bool:
        return type(value) is int and 0 <= value < size

    context, stop = about.get("context"), about.get("stop")
    right = {
        "vocabulary": size > 0,
        "context": type(context) is int and 0 < context <= _MOST_CONTEXT,
        "stop": isinstance(stop, list | tuple) and len(stop) <= _MOST_STOPS and all(map(token, stop)),
        "bos": about.get("bos") is None or token(about["bos"]),
        "template": about.get("template") is None or isinstance(about["template"], str),
        "its inputs": takes_tokens(model.inputs()) and "predict" not in model.bundle.uses,
        "logits of its vocabulary": _gives_logits(model.outputs(), size),
        "graphs that take its adapters": layout(about) is None or _takes_adapters(model),
    }
    if wrong := [name for name, held in right.items() if not held]:
        raise InputError(f"this bundle's language model is not complete ({', '.join(wrong)}); convert it again")
    return about


def _takes_adapters(model: Model) -> bool:
    """Whether there is a signature "adapted", like "predict" but for adapters."""
    if "adapted" not in model.signatures:
        return False
    names = [v.name for v in model.inputs()]
    adapted = [v.name for v in model.inputs("adapted")]
    outputs = [v.name for v in model.outputs("adapted")]
    return sorted(adapted) == sorted([*names, "adapters", "adapter_rows"]) and outputs == ["logits"]


def takes_tokens(inputs: Items[Value]) -> bool:
    """Whether a graph with these inputs is that of a language model."""
    return {v.name for v in inputs}.issuperset(_PORTS)


def _gives_logits(outputs: Items[Value], vocabulary: int) -> bool:
    """Whether logits float32 [wanted, vocabulary] are the only output; a run checks their width if it is open."""
    if [(v.name, v.dtype) for v in outputs] != [("logits", "float32")]:
        return False
    shape = outputs[0].shape
    return shape is None or (len(shape) == 2 and (shape[1] == vocabulary or not isinstance(shape[1], int)))


_RANKS = {"block_table": 2}
"""Of the inputs that are not caches, if it is not one."""
_SCALES = {"float16": 0, "float32": 0, "int8": SCALE}
"""Element types of caches -> what is behind the features of a position and head."""


def _caches(model: Model, pages: int) -> Mapping[str, Array]:
    """The caches of all layers, zero. Raises InputError for inputs that are no tables of tokens and no caches, for
    layers that differ, and for caches that do not fit the memory."""
    inputs = {v.name: v for v in model.inputs()}
    for name in _PORTS:
        shape = inputs[name].shape
        if inputs[name].dtype != "int32" or shape is None or len(shape) != _RANKS.get(name, 1) or not _open(shape):
            raise InputError(f"input {name!r}: expected int32 of open sizes, got {inputs[name]}; convert it again")
    held = {name: v for name, v in inputs.items() if name not in _PORTS}
    layers = {name.removeprefix(KEYS) for name in held if name.startswith(KEYS)}
    wanted = {begin + layer for layer in layers for begin in (KEYS, VALUES)}
    if held.keys() != wanted or not layers:
        names = ", ".join(sorted(held.keys() ^ wanted))[:80]
        raise InputError(f"expected a cache of keys and one of values for each layer, got {names or 'none'}")
    kinds = {(v.dtype, *_heads_and_size(v)) for v in held.values()}
    if len(kinds) > 1:
        raise InputError(f"expected caches of the same type in all layers, got {len(kinds)}; convert the model again")
    ((dtype, heads, size),) = kinds
    shapes = {KEYS: (pages, heads, size, PAGE), VALUES: (pages, heads, PAGE, size)}
    try:
        return {name: _zeros(shapes[KEYS if name.startswith(KEYS) else VALUES], dtype) for name in held}
    except (MemoryError, ValueError):
        raise InputError(f"no memory for caches of {pages * PAGE} tokens; load it with fewer (positions=…)") from None


def _heads_and_size(cache: Value) -> tuple[int, int]:
    """Of a cache [pages, heads, size, 16] of keys, or [pages, heads, 16, size] of values. Scales count as
    features."""
    shape = cache.shape or ()
    known = shape[1:] if cache.name.startswith(KEYS) else (*shape[1:2], *shape[:1:-1])
    if cache.dtype in _SCALES and len(known) == 3 and _open(shape[:1]):
        heads, size, page = known
        if isinstance(heads, int) and isinstance(size, int) and size > _SCALES[cache.dtype] and page == PAGE:
            return heads, size
    raise InputError(f"input {cache.name!r}: expected a cache of pages, got {cache}; convert the model again")


def _open(shape: Items[Any]) -> bool:
    return not any(isinstance(size, int) for size in shape)


def _zeros(shape: tuple[int, ...], dtype: str) -> Array:
    """Zeros aligned to a cache line. Memory of pages that are never used is never touched."""
    kind = numpy_dtype(dtype)
    count = prod(shape) * kind.itemsize
    raw = np.zeros(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count].view(kind).reshape(shape)
