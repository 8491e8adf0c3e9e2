"""Splits cover everything once, draws are full and repeatable, files that do not fit are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from federated import data
from federated.errors import FederatedError
from federated.learner import Batch

Seeds = st.integers(0, 2**32 - 1)


def rng(*seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def numbered(labels: Any) -> Batch:
    """Examples whose input is their number."""
    return Batch({"x": np.arange(len(labels))}, np.asarray(labels, np.int64))


@given(Seeds, st.integers(1, 30), st.integers(1, 6), st.integers(1, 9))
def test_draws_take_everything_before_anything_again(seed: int, count: int, steps: int, n: int) -> None:
    shard = numbered(np.arange(count) % 3)
    drawn = data.draw(shard, rng(seed), steps, n)
    assert drawn.inputs["x"].shape == drawn.labels.shape == (steps, n)
    assert (drawn.labels == shard.labels[drawn.inputs["x"]]).all()
    times = np.bincount(drawn.inputs["x"].ravel(), minlength=count)
    assert times.max() - times.min() <= 1
    again = data.draw(shard, rng(seed), steps, n)
    assert (again.inputs["x"] == drawn.inputs["x"]).all()


def test_nothing_can_be_drawn_from_nothing() -> None:
    with pytest.raises(FederatedError, match="at least one example"):
        data.draw(numbered([]), rng(0), 1, 1)


LABELS = st.lists(st.integers(0, 4), max_size=40)


@given(Seeds, LABELS, st.integers(1, 6))
def test_support_and_query_share_out_every_label(seed: int, labels: list[int], k: int) -> None:
    support, query = data.support_query(numbered(labels), k, rng(seed))
    assert sorted([*support.inputs["x"], *query.inputs["x"]]) == list(range(len(labels)))
    for label in set(labels):
        count, chosen = labels.count(label), int((support.labels == label).sum())
        assert chosen == (1 if count == 1 else min(k, count - 1))


@given(Seeds, LABELS, st.floats(0, 1))
def test_splits_are_of_every_label(seed: int, labels: list[int], share: float) -> None:
    first, second = data.split(numbered(labels), share, rng(seed))
    assert sorted([*first.inputs["x"], *second.inputs["x"]]) == list(range(len(labels)))
    for label in set(labels):
        exact, found = share * labels.count(label), int((first.labels == label).sum())
        assert abs(found - exact) < 1 or len(labels) * min(share, 1 - share) < 1
    assert data.size(first) >= min(1, len(labels)), "who has an example has one to train on"
    assert data.size(second) >= min(1, len(labels) - 1), "who has two has one to test on"
    assert abs(data.size(first) - share * len(labels)) <= 1


@pytest.mark.parametrize("each", [1, 2, 3])
def test_splits_of_many_labels_with_few_examples_are_proportional(each: int) -> None:
    """136 labels of one example each: 102 to train on and 34 to test with, and not always the same labels."""
    shard = numbered(np.repeat(np.arange(136), each))
    parts = [data.split(shard, 0.75, rng(seed)) for seed in range(2)]
    assert [data.size(part) for part in parts[0]] == [102 * each, 34 * each]
    assert parts[0][1].inputs["x"].tolist() != parts[1][1].inputs["x"].tolist()
    assert parts[0][1].labels.min() < 30 and parts[0][1].labels.max() > 105


@pytest.mark.parametrize("test", [0.1, 0.2, 0.3, 0.7, 0.9])
def test_splits_do_not_lose_an_example_to_rounding(test: float) -> None:
    first, _ = data.split(numbered([0] * 10 + [1] * 20), 1 - test, rng(0))
    assert np.bincount(first.labels).tolist() == [round(10 * (1 - test)), round(20 * (1 - test))]


@given(Seeds, st.integers(0, 40), st.integers(1, 6), st.booleans())
def test_measurements_are_not_labels(seed: int, count: int, k: int, flat: bool) -> None:
    """No two are alike, and yet there is something to adapt to and something to ask."""
    y = rng(seed).normal(size=count if flat else (count, 2)).astype(np.float32)
    shard = Batch({"x": np.arange(count)}, y)
    support, query = data.support_query(shard, k, rng(seed))
    first, second = data.split(shard, 0.75, rng(seed))
    assert data.size(support) == min(k, max(count - 1, min(count, 1)))
    assert data.size(first) == min(max(round(0.75 * count), 1), max(count - 1, 1)) * bool(count)
    for parts in ((support, query), (first, second)):
        rows = np.concatenate([part.inputs["x"] for part in parts])
        assert sorted(rows) == list(range(count))
        assert (np.concatenate([part.labels for part in parts]) == y[rows]).all()


def test_devices_by_name() -> None:
    found = data.by_device(numbered([0, 1, 2, 3]), np.array(["b", "a", "b", "c"]))
    assert {name: shard.inputs["x"].tolist() for name, shard in found.items()} == {"a": [1], "b": [0, 2], "c": [3]}
    assert data.by_device(numbered([]), np.zeros(0, "U1")) == {}
    joined = data.join(list(found.values()))
    assert joined.inputs["x"].tolist() == [1, 0, 2, 3] and data.size(joined) == 4
    with pytest.raises(FederatedError, match="at least one device"):
        data.join([])


@given(Seeds, st.integers(1, 8), st.floats(0.05, 100))
def test_dirichlet_shares_out_everything_once(seed: int, devices: int, alpha: float) -> None:
    labels = np.arange(120) % 4
    parts = data.dirichlet(labels, devices, alpha, rng(seed), least=0)
    assert len(parts) == devices and sorted(np.concatenate(parts)) == list(range(120))


def test_dirichlet_draws_until_each_device_has_enough() -> None:
    parts = data.dirichlet(np.arange(200) % 4, 5, 0.3, rng(1), least=10)
    assert min(map(len, parts)) >= 10
    with pytest.raises(FederatedError, match="fewer than 60; ask for fewer devices"):
        data.dirichlet(np.arange(200) % 4, 5, 0.1, rng(1), least=60, tries=3)


def test_a_small_alpha_leaves_devices_few_labels() -> None:
    labels = np.arange(1000) % 10

    def most(alpha: float) -> float:
        """The share of a device's commonest label, mean over devices."""
        parts = data.dirichlet(labels, 10, alpha, rng(0))
        return float(np.mean([np.bincount(labels[part]).max() / len(part) for part in parts]))

    assert most(0.1) > 0.4 > 0.2 > most(100.0)


def test_synthetic_is_that_of_the_papers() -> None:
    """205,795 examples, 250 to 25,810 a device, are the published program's for seed 0."""
    devices = data.synthetic(0.5, 0.5)
    counts = [data.size(device) for device in devices]
    assert (len(counts), sum(counts), min(counts), max(counts)) == (100, 205795, 250, 25810)
    assert devices[3].inputs["x"].shape == (counts[3], 60) and devices[3].inputs["x"].dtype == np.float32
    spread = np.concatenate([device.inputs["x"] - device.inputs["x"].mean(0) for device in devices]).std(0)
    np.testing.assert_allclose(spread, np.arange(1, 61) ** -0.6, rtol=0.02)
    assert set(np.concatenate([device.labels for device in devices])) == set(range(10))


def test_synthetic_draws_as_the_papers_programs_do() -> None:
    """The legacy generator's calls in their order, the normals with a covariance matrix."""
    legacy = np.random.RandomState(7)
    counts = (legacy.lognormal(4, 2, 2).astype(int) + 50) * 5
    models, centres = legacy.normal(0, 0.5, 2), legacy.normal(0, 0.25, 2)
    means = [legacy.normal(centre, 1, 60) for centre in centres]
    for device, count, model, mean in zip(data.synthetic(0.5, 0.25, 2, seed=7), counts, models, means, strict=True):
        w, b = legacy.normal(model, 1, (60, 10)), legacy.normal(model, 1, 10)
        x = legacy.multivariate_normal(mean, np.diag(np.arange(1, 61) ** -1.2), count)
        np.testing.assert_allclose(device.inputs["x"], x, rtol=1e-5, atol=1e-5)
        assert (device.labels == np.argmax(x @ w + b, 1)).all()


def test_synthetic_devices_spread_with_alpha_and_beta() -> None:
    means = [np.array([d.inputs["x"].mean() for d in data.synthetic(0.0, beta, 40, seed=1)]) for beta in (0.0, 3.0)]
    assert means[0].std() < 0.3 < 2.0 < means[1].std() < 4.5


def test_sinusoids_are_sinusoids() -> None:
    for task in data.sinusoids(rng(0), 5, 50):
        x, y = task.inputs["x"].astype(np.float64), task.labels
        assert x.shape == y.shape == (50, 1) and y.dtype == np.float32 and np.abs(x).max() <= 5
        # a sin(x - p) = a cos p sin x - a sin p cos x
        base = np.concatenate([np.sin(x), np.cos(x)], 1)
        (s, c), *_ = np.linalg.lstsq(base, y[:, 0], rcond=None)
        np.testing.assert_allclose(base @ [s, c], y[:, 0], atol=1e-5)
        assert 0.1 <= np.hypot(s, c) <= 5 and -s * 0 <= -c + 1e-6


# -- files -------------------------------------------------------------------------------------------------------------


def test_shards_out_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "all.npz"
    np.savez(path, x=np.arange(6).reshape(3, 2), labels=[0, 1, 2], device=["b", "a", "b"])
    found = data.shards(path)
    assert list(found) == ["a", "b"]
    assert found["b"].inputs["x"].tolist() == [[0, 1], [4, 5]] and found["b"].labels.tolist() == [0, 2]


def test_examples_are_read_once_whatever_the_number_of_devices() -> None:
    """One sort: comparing every name with every example took 13 s for 5,000 devices."""
    compared = 0

    class Counted(np.ndarray[Any, Any]):
        def __eq__(self, other: object) -> Any:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    owners = np.repeat([f"d{i:03}" for i in range(300)], 4)[rng(0).permutation(1200)]
    found = data.by_device(numbered(np.arange(1200)), owners.view(Counted))
    assert compared == 0 and list(found) == [f"d{i:03}" for i in range(300)]
    for name, shard in found.items():
        assert shard.inputs["x"].tolist() == np.flatnonzero(owners == name).tolist()


def test_a_device_reads_its_own_file_only(tmp_path: Path) -> None:
    for name in ("kim", "ann"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((2, 3)), labels=[0, 1])
    (tmp_path / "zoe.npz").write_text("damaged")
    assert data.size(data.own(tmp_path, "kim")) == 2
    with pytest.raises(FederatedError, match=r"expected examples of device 'bob', got those of ann, kim, zoe"):
        data.own(tmp_path, "bob")
    np.savez(tmp_path / "all.npz", x=np.arange(6).reshape(3, 2), labels=[0, 1, 2], device=["b", "a", "b"])
    assert data.own(tmp_path / "all.npz", "b").labels.tolist() == [0, 2]
    np.savez(tmp_path / "words.npz", x=np.arange(6).reshape(3, 2), y=[0, 1, 2], who=["b", "a", "b"])
    assert data.own(tmp_path / "words.npz", "b", "y", "who").labels.tolist() == [0, 2]
    with pytest.raises(FederatedError, match=r"all\.npz: expected examples of device 'c', got those of a, b"):
        data.own(tmp_path / "all.npz", "c")


@pytest.mark.parametrize("name", ["../kim", "a/b", "..", ""])
def test_a_devices_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    np.savez(tmp_path / "kim.npz", x=np.zeros((2, 3)), labels=[0, 1])
    np.savez(tmp_path / "in" / "ann.npz", x=np.zeros((2, 3)), labels=[0, 1])
    with pytest.raises(FederatedError, match="expected examples of device"):
        data.own(tmp_path / "in", name)


def test_shards_out_of_a_folder(tmp_path: Path) -> None:
    for name in ("kim", "ann"):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((2, 3)), labels=[0, 1])
    assert list(data.shards(tmp_path)) == ["ann", "kim"]


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path / "d.npz", **arrays)
    return path / "d.npz"


X, Y = np.zeros((3, 2)), np.zeros(3)
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"x": X, "labels": Y}, "expected an array 'device'.*holds labels, x"),
    ({"x": X, "device": Y}, "expected an array 'labels' and the model's inputs; the file holds x"),
    ({"labels": Y, "device": Y}, "the model's inputs; the file holds labels"),
    ({"x": X[:2], "labels": Y, "device": Y}, r"arrays of one length, got x \(2, 2\), labels \(3,\)"),
    ({"x": X, "labels": Y, "device": Y[:2]}, r"'device' of shape \(3,\), got \(2,\)"),
    ({"x": X[:0], "labels": Y[:0], "device": Y[:0]}, "no examples"),
    ({"x": np.float32(1), "labels": np.float32(1), "device": Y}, "arrays of one length"),
    ({"x": np.array([None]), "labels": Y, "device": Y}, "plain arrays"),
]


@pytest.mark.parametrize(("arrays", "match"), WRONG)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, arrays: dict[str, Any], match: str) -> None:
    with pytest.raises(FederatedError, match=match) as error:
        data.shards(saved(tmp_path, **arrays))
    assert "d.npz" in str(error.value)


def test_what_is_no_file_of_arrays_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_bytes(b"")
    np.savez_compressed(tmp_path / "damaged.npz", x=np.arange(1000.0), labels=np.zeros(1000, np.int64))
    whole = bytearray((tmp_path / "damaged.npz").read_bytes())
    whole[60:100] = b"\xff" * 40
    (tmp_path / "damaged.npz").write_bytes(whole)
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "empty").mkdir()
    for name in ("missing.npz", "text.npz", "empty.npz", "damaged.npz", "one.npy"):
        with pytest.raises(FederatedError, match=name):
            data.shards(tmp_path / name)
    with pytest.raises(FederatedError, match="for each device, found none"):
        data.shards(tmp_path / "empty")


def test_an_empty_device_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "full.npz", x=X, labels=Y)
    np.savez(tmp_path / "hollow.npz", x=X[:0], labels=Y[:0])
    with pytest.raises(FederatedError, match="no examples of hollow; leave such devices out"):
        data.shards(tmp_path)
