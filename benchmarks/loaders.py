"""Data pipelines beside grain's and PyTorch's loaders, on one machine, in alternating turns.

`python -m benchmarks.loaders` prints a table: CPU time of this process for a batch, without workers, in the median
turn, and the median of the ratios of turns side by side (a peer's time over ours; above 1 ours is faster). Every loader
gives the same kind of batches: shuffled, columns of float32 or uint8 and int32. Each peer is written as its
documentation writes it for speed: PyTorch, with one thread, takes whole batches of arrays by index lists
(`BatchSampler`, `__getitems__`); grain reads a file with one record a chunk, which it asks for. Without PyTorch its
column is left out.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloud import data
from cloud.data.records import decode, encode

__all__ = ["CASES", "main"]

Loader = Callable[[int], Iterator[Any]]
"""A seed -> the batches of an epoch."""

RANDOM = np.random.default_rng(0)


def _rows(count: int, *shape: int) -> dict[str, Any]:
    kind = np.uint8 if len(shape) == 3 else np.float32
    x = RANDOM.integers(0, 256, (count, *shape)).astype(kind)
    return {"x": x, "labels": RANDOM.integers(0, 10, count).astype(np.int32)}


class _Elements:
    """Rows of arrays as elements."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(self.arrays["labels"])

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {name: array[number] for name, array in self.arrays.items()}


def _augmented(element: Mapping[str, Any]) -> dict[str, Any]:
    """What the elementwise case does to an image."""
    return {**element, "x": element["x"][:, ::-1].astype(np.float32) * np.float32(1 / 255)}


def _ours(pipeline: data.Pipeline) -> Loader:
    return lambda seed: pipeline.prefetch(threads=0).batches(seed=seed)


def _by_grain(source: Any, rows: int, function: Callable[[Any], Any] | None = None) -> Loader:
    import grain

    def epoch(seed: int) -> Iterator[Any]:
        dataset = grain.MapDataset.source(source).shuffle(seed=seed)
        dataset = dataset if function is None else dataset.map(function)
        return iter(dataset.batch(rows).to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)))

    return epoch


def _by_torch(dataset: Any, rows: int, *, whole: bool = False) -> Loader:
    """`whole`: the dataset takes lists of numbers and returns a batch."""
    import torch

    def epoch(seed: int) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(seed)
        sampler = torch.utils.data.RandomSampler(dataset, generator=generator)
        if whole:
            lists = torch.utils.data.BatchSampler(sampler, rows, drop_last=False)
            return iter(torch.utils.data.DataLoader(dataset, batch_size=None, sampler=lists))
        return iter(torch.utils.data.DataLoader(dataset, batch_size=rows, sampler=sampler))

    return epoch


def _arrays(folder: Path, shape: tuple[int, ...], rows: int) -> dict[str, Loader]:
    held = _rows(rows * 60, *shape)
    loaders = {"ours": _ours(data.arrays(held).shuffle().batch(rows)), "grain": _by_grain(_Elements(held), rows)}
    if _has_torch():
        import torch

        tensors = torch.utils.data.TensorDataset(*(torch.from_numpy(a) for a in held.values()))
        loaders["torch"] = _by_torch(tensors, rows, whole=True)
    return loaders


def _elementwise(folder: Path, shape: tuple[int, ...], rows: int) -> dict[str, Loader]:
    held = _rows(rows * 30, *shape)
    loaders = {
        "ours": _ours(data.arrays(held).shuffle().map(_augmented).batch(rows)),
        "grain": _by_grain(_Elements(held), rows, _augmented),
    }
    if _has_torch():

        class Augmented(_Elements):
            def __getitem__(self, number: int) -> dict[str, Any]:
                return _augmented(super().__getitem__(number))

        loaders["torch"] = _by_torch(Augmented(held), rows)
    return loaders


def _records(folder: Path, shape: tuple[int, ...], rows: int) -> dict[str, Loader]:
    from cloud.data._grain import record_reader, record_writer

    held = _Elements(_rows(rows * 400, *shape))
    ours, theirs = folder / "ours.records", folder / "grain.records"
    elements = [held[k] for k in range(len(held))]
    data.write_records(ours, elements)
    with record_writer(str(theirs), 1) as write:
        for element in elements:
            write(encode(element))
    from grain.sources import ArrayRecordDataSource

    loaders = {
        "ours": _ours(data.records(ours).shuffle().batch(rows)),
        "grain": _by_grain(ArrayRecordDataSource(str(theirs)), rows, decode),
    }
    if _has_torch():
        reader = record_reader(str(ours))

        class Records:
            def __len__(self) -> int:
                return int(reader.num_records())

            def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
                return [{n: np.array(a) for n, a in decode(record).items()} for record in reader.read(numbers)]

        loaders["torch"] = _by_torch(Records(), rows)
    return loaders


CASES: dict[str, tuple[Callable[[Path, tuple[int, ...], int], dict[str, Loader]], tuple[int, ...], int]] = {
    "arrays, 128 × 784": (_arrays, (784,), 128),
    "arrays, 32 × 64": (_arrays, (64,), 32),
    "arrays, 64 × 32 × 32 × 3": (_arrays, (32, 32, 3), 64),
    "a function of each image, 64 × 32 × 32 × 3": (_elementwise, (32, 32, 3), 64),
    "records, 256 × 16 of 102,400": (_records, (16,), 256),
    "records, 64 × 784 of 25,600": (_records, (784,), 64),
}


def _has_torch() -> bool:
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _turn(loader: Loader, seed: int, most: int) -> float:
    """Milliseconds of CPU time for a batch."""
    batches, count = loader(seed), 0
    next(batches)
    begun = time.process_time()
    for _ in batches:
        count += 1
        if count == most:
            break
    spent = time.process_time() - begun
    close = getattr(batches, "close", None)
    if close:
        close()
    return 1e3 * spent / count


def measured(loaders: Mapping[str, Loader], turns: int, most: int = 25) -> dict[str, list[float]]:
    """The turns of every loader, in alternating order."""
    found: dict[str, list[float]] = {name: [] for name in loaders}
    for turn in range(turns):
        for name in list(loaders) if turn % 2 else list(loaders)[::-1]:
            found[name].append(_turn(loaders[name], turn, most))
    return found


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=15)
    turns = parser.parse_args().turns
    if _has_torch():
        import torch

        torch.set_num_threads(1)  # two only wait for each other with work this small
    names = ["ours", "grain", *(["torch"] if _has_torch() else [])]
    print("| CPU time of a batch |", " | ".join(names), "|", " | ".join(f"{name} / ours" for name in names[1:]), "|")
    print("|" + "---|" * (2 * len(names)))
    for case, (make, shape, rows) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            found = measured(make(Path(folder), shape, rows), turns)
        times = [f"{np.median(found[name]):.3f} ms" for name in names]
        ratios = [f"{np.median(np.divide(found[name], found['ours'])):.2f}" for name in names[1:]]
        print(f"| {case} |", " | ".join(times), "|", " | ".join(ratios), "|", flush=True)


if __name__ == "__main__":
    main()
