"""All uses of grain and array_record; written for grain 0.2.18. No other file imports them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Numbered", "ahead_in_threads", "record_reader", "record_writer"]


class Numbered(Protocol):
    """Items to read ahead: any object with a length and `get`."""

    def __len__(self) -> int:
        """The number of items."""

    def get(self, number: int) -> Any:
        """One item; may be called from several threads at once."""


def ahead_in_threads(items: Numbered, start: int, *, threads: int, buffer: int) -> Iterator[Any]:
    """Items from number `start` on, in order, read by `threads` threads, up to `buffer` items ahead. Closing the
    iterator stops the threads."""
    import grain

    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=max(buffer, threads))
    read = grain.MapDataset.source(_From(items, start)).to_iter_dataset(options, allow_nones=True)
    iterator: Any = iter(read)
    try:
        yield from iterator
    finally:
        iterator.close()


class _From:
    """The items as grain needs them: `[number]` from a start on."""

    def __init__(self, items: Numbered, start: int) -> None:
        self._items, self._start = items, start

    def __len__(self) -> int:
        return len(self._items) - self._start

    def __getitem__(self, number: int) -> Any:
        return self._items.get(int(number) + self._start)


def record_reader(path: str) -> Any:
    """An array_record file: `read(numbers)` -> list of bytes, in this order; `num_records()`. Raises RuntimeError,
    OSError or ValueError for a file that is not complete.

    A call costs CPU time in proportion to the file's chunks (6 ms for a million), whatever it reads, so records are
    read by batch. grain's own source was tried and cost twice as much a batch.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(path, "readahead_buffer_size:0")
    if not reader.ok():
        reader.close()  # raises the reason
        raise RuntimeError("its end is missing")
    return reader


@contextmanager
def record_writer(path: str, together: int = 1) -> Iterator[Callable[[bytes], None]]:
    """A function that appends a record to a new file. `together`: records in a chunk, which are read together."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(path, f"group_size:{together}")
    try:
        yield writer.write
    finally:
        writer.close()
