"""Reading a pipeline: the batches of one epoch for one process, from any position, and the position at any time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, TypeAlias

from cloud.data import ir
from cloud.data._grain import ahead_in_threads
from cloud.data.reading.opening import Context, open_view
from cloud.data.reading.streams import elements, is_stream, starts_anywhere
from cloud.data.reading.workers import ahead_in_processes
from cloud.errors import DataError

__all__ = ["Batches", "Position", "open_batches"]

Position: TypeAlias = int | dict[str, Any]
"""The number of the next batch, or a result of `Batches.position()`."""

_FIELDS = {"batch": int, "element": int, "epoch": int, "pipeline": str, "seed": int}


class Batches(Iterator[Any]):
    """Batches of one epoch; `position()` allows continuing after those taken so far. `close` stops reading ahead."""

    def __init__(
        self, items: Iterator[Any], position: dict[str, Any], count: int | None = None, *, numbered: bool = False
    ) -> None:  # fmt: skip
        """`items`: batches or, if `numbered`, pairs of a batch and the number of the element after it; `count`: the
        batches of a whole epoch, if known."""
        self._items, self._position, self.count, self._numbered = items, position, count, numbered

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        found = next(self._items)
        self._position["batch"] += 1
        if self._numbered:
            found, self._position["element"] = found
        return found

    def position(self) -> dict[str, Any]:
        """Numbers and strings for JSON; the same in every process and for any number of processes."""
        return dict(self._position)

    def close(self) -> None:
        """Stop reading ahead; also done at the end and when the iterator is dropped."""
        closing = getattr(self._items, "close", None)
        if closing:
            closing()

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_batches(
    node: ir.Node, prefetch: ir.Prefetch | None, fingerprint: str, *, seed: int, epoch: int, position: Position | None,
    process: tuple[int, int],
) -> Batches:  # fmt: skip
    """The batches of an optimised node; see `Pipeline.batches`."""
    if seed < 0 or epoch < 0:
        raise DataError(f"expected a seed and an epoch of at least 0, got {seed} and {epoch}")
    if not in_batches(node):
        raise DataError("expected a pipeline of batches, got one of single elements: end it with .batch(size)")
    late = [n.function.shown for n in ir.walk(node) if isinstance(n, ir.Filter) and _late(n)]
    if process[1] > 1 and late:
        raise DataError(
            f"{late[0]} filters whole batches, but each of {process[1]} processes sees only its own rows: filter "
            "before .batch(...)"
        )
    here: dict[str, Any] = {"batch": 0, "element": 0, "epoch": epoch, "pipeline": fingerprint, "seed": seed}
    here |= {"batch": position} if isinstance(position, int) else _checked(position, here)
    if here["batch"] < 0:
        raise DataError(f"expected a position of at least 0, got {here['batch']}")
    context = Context((seed, epoch), process)
    ahead = _reader(node, prefetch)
    if is_stream(node):
        return Batches(_streamed(node, context, ahead, dict(here)), here, numbered=True)
    view = open_view(node, context)
    if here["batch"] > len(view):
        raise DataError(f"the epoch has {len(view)} batches: no position after {here['batch']}")
    return Batches(ahead(view, here["batch"]), here, len(view))


def in_batches(node: ir.Node) -> bool:
    """Whether the elements are batches."""
    if isinstance(node, ir.Batch):
        return True
    below = ir.parents(node)
    return bool(below) and all(in_batches(parent) for parent in below)


def _late(node: ir.Node) -> bool:
    return any(isinstance(below, ir.Batch) for below in ir.walk(node))


def _streamed(node: ir.Node, context: Context, ahead: Any, here: dict[str, Any]) -> Iterator[tuple[Any, int]]:
    start = here["element"] if starts_anywhere(node) else 0  # else everything before the position is read again
    skipped = 0 if start else here["batch"]
    for number, item in enumerate(elements(node, context, ahead, start)):
        if number >= skipped:
            yield item.element, item.next


def _reader(node: ir.Node, prefetch: ir.Prefetch | None) -> Any:
    """How to read ahead: as configured; else not at all if that costs more than the work, or by one thread."""
    if prefetch is None:
        prefetch = ir.Prefetch(node, threads=0) if _only_moves(node) else ir.Prefetch(node)
    if prefetch.workers:
        return partial(ahead_in_processes, workers=prefetch.workers, buffer=prefetch.ahead)
    if prefetch.threads:
        return partial(ahead_in_threads, threads=prefetch.threads, buffer=prefetch.ahead)
    return _plainly


def _plainly(items: Any, start: int) -> Iterator[Any]:
    # No reference to a batch is kept while the next one is made: else its memory is not reused (15 % slower).
    return map(items.get, range(start, len(items)))


def _only_moves(node: ir.Node) -> bool:
    """Whether batches are slices of arrays with at most row functions applied that draw nothing."""
    plain = ir.Arrays | ir.Npz | ir.Text | ir.Shuffle | ir.Repeat | ir.Slice | ir.Batch | ir.Zip
    return all(
        not ir.draws_of(n) and (isinstance(n, plain) or (isinstance(n, ir.Map) and all(s.rows for s in n.steps)))
        for n in ir.walk(node)
    )


def _checked(position: Position | None, here: dict[str, Any]) -> dict[str, Any]:
    if position is None:
        return {}
    if not isinstance(position, dict) or {n: type(v) for n, v in position.items()} != _FIELDS:
        raise DataError(f"expected a position with {_FIELDS}, got {position!r}")
    for name in ("seed", "epoch", "pipeline"):
        if position[name] != here[name]:
            raise DataError(
                f"the position is from {name} {position[name]!r}, the pipeline is read with {here[name]!r}: reading "
                "can only continue with the same functions, sources, seed and epoch"
            )
    return position
