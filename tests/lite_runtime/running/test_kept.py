"""Programs stored by one start and used by a later one: the same bits; damaged files are written again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lite_runtime import bundle
from lite_runtime.errors import BundleError, InputError
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.native import build
from lite_runtime.running import kept, session
from tests.lite_runtime.learners import B, W, learner

pytestmark = pytest.mark.skipif(not build.available(), reason="no native kernels on this machine")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 8)).astype(np.float32)


def network(rows: int | str = 3) -> Graph:
    """relu(x @ w) @ v + x[:, :4], and x's rows picked by an index."""
    constants = {
        "w": RNG.standard_normal((8, 16)).astype(np.float32),
        "v": RNG.standard_normal((16, 4)).astype(np.float32),
        "i": np.array([2, 0], np.int64),
    }
    nodes = (
        Node("MatMul", ("x", "w"), ("a",)),
        Node("Relu", ("a",), ("b",)),
        Node("MatMul", ("b", "v"), ("y",)),
        Node("Gather", ("x", "i"), ("z",), {"axis": 1}),
    )
    outputs = (Value("y", "float32", (rows, 4)), Value("z", "float32", (rows, 2)))
    return Graph((Value("x", "float32", (rows, 8)),), outputs, nodes, constants)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for what is kept, of a runtime that was built whole."""
    build.prepare(["walker", "gemm", "elementwise", "copy", "indexing"])
    place = build._path  # where kernels are, though the cache moves
    monkeypatch.setattr(build, "_path", place)
    for family in build.families():
        place(family, build.host())  # type: ignore[arg-type]
    monkeypatch.setattr(build, "identity", lambda: "this runtime")
    monkeypatch.setenv("MSEDGE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "programs"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    bundle.write(tmp_path / "network.mslite", {"predict": network()})
    return tmp_path / "network.mslite"


def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fills with the plans that are made from now on."""
    from lite_runtime.planning import plan

    made: list[Any] = []
    real = plan.plan

    def counted(*args: Any, **options: Any) -> Any:
        made.append(real(*args, **options))
        return made[-1]

    monkeypatch.setattr(plan, "plan", counted)
    return made


def test_a_second_start_does_not_plan(cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = planned(monkeypatch)
    first = session.load(path).run({"x": X})
    assert len(plans) == 1 and len(list(cache.iterdir())) == 2
    again = session.load(path)
    assert isinstance(again._held, kept.Sketch)
    second = again.run({"x": X})
    assert len(plans) == 1
    assert {name: array.tobytes() for name, array in first.items()} == {n: a.tobytes() for n, a in second.items()}


def test_a_stored_plan_describes_itself_like_the_plan(cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = planned(monkeypatch)
    session.load(path).run({"x": X})
    model = session.load(path)
    model.run({"x": X})
    (bound,) = model._executor("predict")._plans.values()
    found, (made,) = bound.plan, plans
    assert np.array_equal(found.program, made.program)
    assert found.constants.keys() == made.constants.keys()
    for base, array in made.constants.items():
        assert found.constants[base].dtype == array.dtype and np.array_equal(found.constants[base], array)
        assert found.constants[base].ctypes.data % 64 == 0 or not array.size
    assert [[node.where for node in unit] for unit in found.units] == [[n.where for n in u] for u in made.units]
    for field in ("kernels", "records", "bases", "arena_bytes", "slots", "inputs", "outputs", "copies", "frontier"):
        assert getattr(found, field) == getattr(made, field), field
    assert [(step.begin, step.end) for step in found.steps] == [(step.begin, step.end) for step in made.steps]
    assert all(found.where[name] == made.where[name] for name in (*made.inputs, *made.outputs))


def test_weights_that_are_read_as_stored_are_not_kept_twice(cache: Path, tmp_path: Path) -> None:
    """A table that Gather reads is stored only in the bundle."""
    table = RNG.standard_normal((1000, 64)).astype(np.float32)
    inputs, outputs = (Value("i", "int64", (3,)),), (Value("y", "float32", (3, 64)),)
    graph = Graph(inputs, outputs, (Node("Gather", ("t", "i"), ("y",)),), {"t": table})
    bundle.write(tmp_path / "table.mslite", {"predict": graph})
    rows = np.array([999, 0, -1])
    for _ in range(2):
        made = session.load(tmp_path / "table.mslite").run({"i": rows})["y"]
        assert np.array_equal(made, table[rows])
    assert sum(file.stat().st_size for file in cache.iterdir()) < table.nbytes // 10


def test_errors_name_the_node_of_a_kept_program(cache: Path, tmp_path: Path) -> None:
    graph = Graph(
        (Value("i", "int64", (1,)),),
        (Value("y", "float32", (1, 2)),),
        (Node("Gather", ("t", "i"), ("y",), name="pick"),),
        {"t": np.zeros((4, 2), np.float32)},
    )
    bundle.write(tmp_path / "table.mslite", {"predict": graph})
    for _ in range(2):
        with pytest.raises(InputError, match="Gather 'pick'"):
            session.load(tmp_path / "table.mslite").run({"i": np.array([7])})


def test_other_shapes_are_planned_from_the_file(cache: Path, tmp_path: Path) -> None:
    bundle.write(tmp_path / "open.mslite", {"predict": network("n")})
    expected = session.load(tmp_path / "open.mslite", backend="reference")
    session.load(tmp_path / "open.mslite").run({"x": X})
    model = session.load(tmp_path / "open.mslite")
    for rows in (3, 1, 2):
        made, wanted = model.run({"x": X[:rows]}), expected.run({"x": X[:rows]})
        assert all(np.allclose(made[name], wanted[name], atol=1e-5) for name in wanted)
    assert len(list(cache.iterdir())) == 2, "the first plan of a process alone is kept"
    assert len(model.bundle.signatures["predict"].nodes) == 4
    with pytest.raises(InputError, match="rank"):
        model.run({"x": X[0]})


@pytest.mark.parametrize("where", [0, 8, 24, 32, 41, 60, -1])
def test_a_damaged_file_is_written_again(cache: Path, path: Path, where: int) -> None:
    wanted = session.load(path).run({"x": X})
    whole = {file: file.read_bytes() for file in cache.iterdir()}
    for file, content in whole.items():
        changed = bytearray(content)
        changed[where] ^= 0x10
        for damaged in (bytes(changed), content[: where or 1], b""):
            file.write_bytes(damaged)
            made = session.load(path).run({"x": X})
            assert all(np.array_equal(made[name], wanted[name]) for name in wanted)
            assert file.read_bytes() == content


def test_stored_programs_are_accessible_only_to_their_owner(cache: Path, path: Path) -> None:
    session.load(path).run({"x": X})
    assert cache.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in cache.iterdir()} == {0o600}


def test_a_bundle_is_checked_though_its_program_is_kept(cache: Path, path: Path) -> None:
    session.load(path).run({"x": X})
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    with pytest.raises(BundleError, match="other contents"):
        session.load(bytes(content))
    path.write_bytes(content[:-5])
    with pytest.raises(BundleError, match=r"network\.mslite.*cut short"):
        session.load(path)


@pytest.mark.parametrize("backend", ["reference", "guard"])
def test_other_backends_keep_no_program(cache: Path, path: Path, backend: str) -> None:
    session.load(path, backend=backend).run({"x": X})
    assert len(list(cache.iterdir()) if cache.exists() else []) == (backend == "guard")  # the signatures


def test_a_runtime_compiled_from_source_keeps_nothing(
    cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "identity", lambda: "")
    session.load(path).run({"x": X})
    assert not cache.exists()


def test_programs_that_others_could_have_written_are_not_run(
    cache: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = planned(monkeypatch)
    first = session.load(path).run({"x": X})
    kept_files = sorted(cache.iterdir())
    assert len(kept_files) == 2 and len(plans) == 1
    for file in kept_files:
        file.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="delete it and run again"):
        again = session.load(path).run({"x": X})
    assert len(plans) == 2 and all(np.array_equal(again[name], first[name]) for name in first)
    assert [file.stat().st_mode & 0o777 for file in kept_files] == [0o600, 0o600]  # made anew
    before = [file.read_bytes() for file in kept_files]
    cache.chmod(0o777)
    with pytest.warns(RuntimeWarning, match=r"chmod go-w .*programs"):
        session.load(path).run({"x": X})
    assert len(plans) == 3 and [file.read_bytes() for file in kept_files] == before
    cache.chmod(0o700)
    session.load(path).run({"x": X})
    assert len(plans) == 3


def test_where_nothing_can_be_written_nothing_is_kept(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSEDGE_CACHE", "/proc/no/such/folder")
    assert session.load(path).run({"x": X})["y"].shape == (3, 4)


def test_old_files_are_deleted_for_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for age in range(6):
        (tmp_path / f"{age}").write_bytes(bytes(10))
        os.utime(tmp_path / f"{age}", (1000 - age, 1000 - age))
    monkeypatch.setattr(kept, "MOST_BYTES", 45)
    kept._make_room(str(tmp_path), 15)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1", "2"]
    monkeypatch.setattr(kept, "MOST_FILES", 2)
    kept._make_room(str(tmp_path), 1)
    assert [file.name for file in tmp_path.iterdir()] == ["0"]


def test_programs_with_different_state_differ(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept are programs that take state as an input, and those with state as it was loaded; nothing in between."""
    plans = planned(monkeypatch)
    path, mine = tmp_path / "learner.mslite", tmp_path / "mine.msstate"
    path.write_bytes(learner())
    x, t = RNG.standard_normal((4, 5)).astype(np.float32), np.zeros((4, 3), np.float32)

    def started(**options: Any) -> tuple[session.Model, Any]:
        model = session.load(path, **options)
        return model, model.run({"x": x})["y"]

    def step(model: session.Model) -> Any:
        return model.run({"x": x, "t": t}, "train_step")["loss"]

    model, y = started()
    np.testing.assert_allclose(y, x @ W + B, rtol=1e-5, atol=1e-6)
    loss = step(model)
    for _ in range(4):
        learned = model.run({"x": x})["y"]
    model.save_state(mine)
    assert len(plans) == 4  # with loaded weights, of a step, with weights as an input, with those learned

    again, same = started()
    assert isinstance(again._held, kept.Sketch) and np.array_equal(same, y) and step(again) == loss
    assert np.array_equal(again.state_dict()["w"], model.state_dict()["w"]) and len(plans) == 4
    again.run({"x": x})  # with weights as an input: kept
    assert len(plans) == 4

    own, first = started(state=mine)
    assert len(plans) == 5
    np.testing.assert_allclose(first, learned, rtol=1e-5, atol=1e-6)
    _, second = started(state=mine)
    assert len(plans) == 5 and np.array_equal(second, first)
    step(own)
    own.save_state(mine)
    _, third = started(state=mine)
    assert len(plans) == 6 and not np.array_equal(third, first)
    arrays, fourth = started(state=own.state_dict())
    assert len(plans) == 7 and np.array_equal(fourth, third) and arrays.state_version == 0


def test_a_start_from_a_stored_program_checks_state(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "learner.mslite"
    path.write_bytes(learner())
    for _ in range(2):
        model = session.load(path)
        with pytest.raises(InputError, match=r"state 'w': expected float32\[5, 3\]"):
            model.load_state_dict({"w": W.T}, strict=False)
        with pytest.raises(InputError, match="got none for b"):
            session.load(path, state={"w": W})
    assert isinstance(model._held, kept.Sketch)


def test_a_signed_file_does_not_use_the_program_of_the_unsigned_one(cache: Path, tmp_path: Path) -> None:
    """Both have the same digest, and their weights are at different places: of small files, which are not aligned to
    pages."""
    from lite_runtime.bundle.signatures import Signature
    from lite_runtime.bundle.signing import with_signatures

    table = RNG.standard_normal((100, 64)).astype(np.float32)
    graph = Graph((Value("i", "int64", (3,)),), (Value("y", "float32", (3, 64)),),
                  (Node("Gather", ("t", "i"), ("y",)),), {"t": table})  # fmt: skip
    plain, signed = tmp_path / "plain.mslite", tmp_path / "signed.mslite"
    data = bundle.write(plain, {"predict": graph})
    signed.write_bytes(with_signatures(data, [Signature("0" * 64, "0" * 128)]))
    assert bundle.opened(plain).digest == bundle.opened(signed).digest
    rows = np.array([99, 0, -1])
    for one in (plain, signed, plain, signed):
        assert np.array_equal(session.load(one).run({"i": rows})["y"], table[rows])
