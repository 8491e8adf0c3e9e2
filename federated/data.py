"""Data of a fleet: devices' examples, batches drawn from them, and ways to simulate heterogeneous devices.

Everything is deterministic given its generator or seed, so that the simulators, a real device and a rerun
draw the same batches.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from federated.errors import FederatedError
from federated.learner import Batch
from federated.tree import Array

__all__ = [
    "arrays_of", "by_device", "dirichlet", "draw", "join", "order", "own", "pick", "shards", "sinusoids", "size",
    "split", "support_query", "synthetic",
]  # fmt: skip

ROUNDING = 1e-9
"""Shares such as 1 - 0.9 are a little less than they should be; their products are rounded down to the right number."""


def size(data: Batch) -> int:
    """The number of examples [n, ...]."""
    return len(data.labels)


def pick(data: Batch, rows: Array) -> Batch:
    """The examples at `rows`, an integer array of any shape, which replaces the leading axis (or a slice)."""
    return Batch({name: values[rows] for name, values in data.inputs.items()}, data.labels[rows])


def join(parts: Sequence[Batch]) -> Batch:
    """All examples of several devices, as for centralised training."""
    if not parts:
        raise FederatedError("expected the data of at least one device to join, got none")
    names = parts[0].inputs
    inputs = {name: np.concatenate([part.inputs[name] for part in parts]) for name in names}
    return Batch(inputs, np.concatenate([part.labels for part in parts]))


def draw(data: Batch, rng: np.random.Generator, steps: int, n: int) -> Batch:
    """`steps` batches of n examples: Batch [steps, n, ...].

    Examples come in random order, without repetition until all were drawn; every batch is full, regardless of the
    number of examples, so that the steps of all devices have the same shape. Raises FederatedError for empty data.
    """
    return pick(data, order(size(data), rng, steps, n))


def order(count: int, rng: np.random.Generator, steps: int, n: int) -> Array:
    """The numbers of the examples that `draw` draws of `count`: int64 [steps, n]."""
    if not count:
        raise FederatedError("expected at least one example to draw batches from, got an empty shard; leave it out")
    passes = -(-steps * n // count)
    whole = rng.permutation(count) if passes == 1 else np.concatenate([rng.permutation(count) for _ in range(passes)])
    return whole[: steps * n].reshape(steps, n)


def split(data: Batch, share: float, rng: np.random.Generator) -> tuple[Batch, Batch]:
    """Two random parts. The first has `share` of the examples, rounded; of every label it has `share` of that label's,
    rounded down or up.

    Each part has at least one example if there are two; a single example is in the first part.
    """
    count = size(data)
    groups = [rng.permutation(alike) for alike in _alike(data.labels)]
    exact = np.array([share * len(group) for group in groups])
    taken = np.floor(exact + ROUNDING).astype(int)
    wanted = min(max(round(share * count), 1), max(count - 1, 1)) if count else 0
    # The labels whose shares were rounded down by most get one more (the method of the largest remainder). Labels that
    # lost equally are in random order, since many labels may have one example each.
    order = rng.permutation(len(groups))
    order = order[np.argsort(-(exact - taken)[order].round(9), kind="stable")]
    step = 1 if wanted >= taken.sum() else -1
    for at in (order if step > 0 else order[::-1])[: abs(wanted - int(taken.sum()))]:
        taken[at] += step
    first = np.zeros(count, bool)
    for group, part in zip(groups, taken, strict=True):
        first[group[:part]] = True
    return pick(data, np.flatnonzero(first)), pick(data, np.flatnonzero(~first))


def support_query(data: Batch, per_class: int, rng: np.random.Generator) -> tuple[Batch, Batch]:
    """Some examples of every label to adapt on, and all others for testing afterwards; if labels are measurements, the
    same number of examples from all.

    Of a label with few examples one is left for testing as long as there are two: the support is never empty, the
    query is empty only if no label has a second example.
    """
    support = np.zeros(size(data), bool)
    for alike in _alike(data.labels):
        rows = rng.permutation(alike)
        support[rows[: min(per_class, max(1, len(rows) - 1))]] = True
    return pick(data, np.flatnonzero(support)), pick(data, np.flatnonzero(~support))


def _alike(labels: Array) -> list[Array]:
    """Rows of each label if labels are integers [n]; for measurements all rows together."""
    if labels.ndim == 1 and labels.dtype.kind in "iub":
        return [np.flatnonzero(labels == label) for label in np.unique(labels)]
    return [np.arange(len(labels))]


def by_device(data: Batch, devices: Array) -> dict[str, Batch]:
    """The natural split: examples of one person, speaker or machine, named by an array [n], sorted by name."""
    if not len(devices):
        return {}
    order = np.argsort(devices, kind="stable")  # once, so that the time does not grow with devices times examples
    names, begins = np.unique(devices[order], return_index=True)
    return {str(name): pick(data, rows) for name, rows in zip(names, np.split(order, begins[1:]), strict=True)}


def dirichlet(
    labels: Array, devices: int, alpha: float, rng: np.random.Generator, least: int = 1, tries: int = 100
) -> list[Array]:
    """Rows of each device, every label split in proportions drawn from Dirichlet(alpha): the smaller alpha, the fewer
    labels a device has. Repeated until each device has `least` rows.

    Hsu, Qi, Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification",
    2019, in the form that splits labels (Yurochkin et al. 2019). Raises FederatedError if `tries` draws fail.
    """
    for _ in range(tries):
        parts: list[list[Array]] = [[] for _ in range(devices)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet(np.full(devices, alpha)))[:-1] * len(rows)
            for part, piece in zip(parts, np.split(rows, cuts.astype(int)), strict=True):
                part.append(piece)
        rows_of = [np.sort(np.concatenate(part)) for part in parts]
        if min(map(len, rows_of)) >= least:
            return rows_of
    raise FederatedError(
        f"{tries} draws of Dirichlet({alpha}) over {devices} devices and {len(labels)} examples left a device with "
        f"fewer than {least}; ask for fewer devices, a larger alpha or a smaller `least`"
    )


def synthetic(alpha: float, beta: float, devices: int = 100, seed: int = 0) -> list[Batch]:
    """Synthetic(alpha, beta): softmax regressions 60 -> 10 that differ from device to device; input `x` float32.

    Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020, section 5.1, with the numbers of examples
    of T. Dinh et al., "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020: five times
    int(lognormal(4, 2)) + 50, that is 205,795 for 100 devices and seed 0. `alpha` is the spread of models, `beta` that
    of inputs; both are standard deviations, as in the programs published with both papers, whose order of draws from
    the legacy generator is used.
    """
    rng = np.random.RandomState(seed)
    counts = (rng.lognormal(4, 2, devices).astype(int) + 50) * 5
    models = rng.normal(0, alpha, devices)
    centres = rng.normal(0, beta, devices)
    means = np.stack([rng.normal(centre, 1, 60) for centre in centres])
    deviations = np.arange(1, 61) ** -0.6
    result = []
    for count, model, mean in zip(counts, models, means, strict=True):
        weights, bias = rng.normal(model, 1, (60, 10)), rng.normal(model, 1, 10)
        x = mean + deviations * rng.standard_normal((count, 60))
        result.append(Batch({"x": x.astype(np.float32)}, np.argmax(x @ weights + bias, axis=1).astype(np.int64)))
    return result


def sinusoids(rng: np.random.Generator, tasks: int, n: int) -> list[Batch]:
    """Regression tasks y = a sin(x - p): `x` float32 [n, 1], labels float32 [n, 1].

    Finn, Abbeel, Levine, "Model-Agnostic Meta-Learning", ICML 2017, section 5.1: a ~ U[0.1, 5], p ~ U[0, pi],
    x ~ U[-5, 5].
    """
    amplitude = rng.uniform(0.1, 5.0, (tasks, 1, 1))
    phase = rng.uniform(0.0, np.pi, (tasks, 1, 1))
    x = rng.uniform(-5.0, 5.0, (tasks, n, 1))
    y = amplitude * np.sin(x - phase)
    return [Batch({"x": a}, b) for a, b in zip(x.astype(np.float32), y.astype(np.float32), strict=True)]


def shards(
    path: Path, labels: str = "labels", device: str = "device", *, alone: bool = False
) -> dict[str, Batch]:
    """Devices' examples by name, from one .npz file or a folder of them.

    A file holds arrays of one length: `labels`, the model's inputs by name, and `device` [n], the owner of each
    example. In a folder every `NAME.npz` belongs to device NAME and has no `device`. Raises FederatedError, naming the
    file and the problem; a device without examples is an error, because a run would notice it only rounds later.
    `alone`: there may be labels only, which is enough for questions about them.
    """
    if path.is_dir():
        files = sorted(path.glob("*.npz"))
        if not files:
            raise FederatedError(f"{path}: expected a file NAME.npz for each device, found none")
        found = {file.stem: _batch(file, arrays_of(file), labels, alone) for file in files}
    else:
        arrays = arrays_of(path)
        if device not in arrays:
            raise FederatedError(f"{path}: expected an array {device!r}: each example's owner; {_held(arrays)}")
        owners = arrays.pop(device)
        data = _batch(path, arrays, labels, alone)
        if owners.shape != (size(data),):
            raise FederatedError(f"{path}: expected {device!r} of shape ({size(data)},), got {owners.shape}")
        found = by_device(data, owners)
    empty = [name for name, data in found.items() if not size(data)]
    if empty or not found:
        raise FederatedError(f"{path}: no examples{' of ' + ', '.join(empty) if empty else ''}; leave such devices out")
    return found


def own(path: Path, name: str, labels: str = "labels", device: str = "device", *, alone: bool = False) -> Batch:
    """The examples of one device, from files as for `shards`; of a folder only its own file is read."""
    if not path.is_dir():
        found = shards(path, labels, device, alone=alone)
        if name in found:
            return found[name]
        names = list(found)
    else:
        files = {file.stem: file for file in sorted(path.glob("*.npz"))}
        if name in files:
            data = _batch(files[name], arrays_of(files[name]), labels, alone)
            if not size(data):
                raise FederatedError(f"{files[name]}: no examples of {name}; leave such devices out")
            return data
        names = list(files)
    others = ", ".join(names) or "none"
    raise FederatedError(f"{path}: expected examples of device {name!r}, got those of {others}"[:500])


def of_one(path: Path, labels: str = "labels") -> Batch:
    """The examples of one device in an .npz file of its own: the model's inputs by name and `labels`. Raises
    FederatedError, also for a file without examples."""
    found = _batch(path, arrays_of(path), labels, False)
    if not size(found):
        raise FederatedError(f"{path}: expected examples, got none")
    return found


def arrays_of(file: Path) -> dict[str, Array]:
    """The arrays of an .npz file. Raises FederatedError for any other file."""
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("it holds one array without a name")
        with archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise FederatedError(f"{file}: expected an .npz file of plain arrays: {error}") from error


def _batch(file: Path, arrays: Mapping[str, Array], labels: str, alone: bool) -> Batch:
    if labels not in arrays or len(arrays) < 2 - alone:
        raise FederatedError(f"{file}: expected an array {labels!r} and the model's inputs; {_held(arrays)}")
    if len({array.shape[:1] for array in arrays.values()}) != 1 or not arrays[labels].ndim:
        lengths = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise FederatedError(f"{file}: expected arrays of one length, got {lengths}")
    return Batch({name: array for name, array in arrays.items() if name != labels}, arrays[labels])


def _held(arrays: Mapping[str, Array]) -> str:
    return "the file holds " + (", ".join(sorted(arrays)) or "nothing")
