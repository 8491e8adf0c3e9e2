"""Every row equals the answer of its device's own bundle, whatever else is in the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.job import Job
from edge.gateway.personal.service import Personal
from edge.gateway.ports import ports_of
from tests.edge.gateway.personal.fleet import Fleet, answer, base, params


def check(fleet: Fleet, jobs: list[tuple[Job, int | None]]) -> None:
    for job, seed in jobs:
        want = fleet.wanted(job.inputs["x"], seed)
        np.testing.assert_allclose(answer(job), want, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(want).max())))
        assert job.notes["personal"] == ("global" if seed is None else "version 1")
        assert job.begun and job.done >= job.computed >= job.begun and job.batch


@pytest.mark.parametrize("kind", ["dense", "head", "norms", "int8", "filters"])
def test_rows_of_many_devices(tmp_path: Path, kind: str) -> None:
    fleet = Fleet(tmp_path, kind, 6, slots=8)
    jobs = [(fleet.job(f"d{i % 6}", rows=1 + i % 3, seed=i), i % 6) for i in range(14)]
    jobs += [(fleet.job("nobody", seed=99), None)]
    fleet.runner.run([job for job, _ in jobs])
    check(fleet, [(job, seed) for job, seed in jobs])
    together = {"dense": 4, "head": 2, "norms": 12, "int8": 2, "filters": 0}[kind]
    assert len(fleet.runner.together) == together
    assert fleet.told == (["personal_one_by_one"] if kind == "filters" else [])
    assert bool(fleet.runner.apart) == (kind == "filters")
    assert fleet.heads.hits == 14 and fleet.heads.misses == 1
    assert fleet.runner.cost.predict(1) is not None


def test_more_devices_than_slots(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "dense", 12, slots=4)
    for turn in range(3):
        jobs = [(fleet.job(f"d{(5 * i + turn) % 12}", seed=i), (5 * i + turn) % 12) for i in range(16)]
        fleet.runner.run([job for job, _ in jobs])
        check(fleet, jobs)


def test_a_new_version_counts_from_the_next_batch(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "dense", 2)
    first, second = fleet.job("d0", seed=1), fleet.job("d0", seed=1)
    fleet.runner.run([first])
    held = fleet.model.bundle
    fleet.store.put("d0", held.digest, params(held, 7), base(held), round=2, consent="serve")
    fleet.versions.look()
    fleet.runner.run([second])
    assert (first.notes["personal"], second.notes["personal"]) == ("version 1", "version 2")
    np.testing.assert_allclose(answer(second), fleet.wanted(second.inputs["x"], 7), rtol=1e-5, atol=1e-5)


def test_versions_that_change_more_and_more(tmp_path: Path) -> None:
    """The set of personal tensors grows with the versions; a version that cannot join is run separately, and
    correctly."""
    fleet = Fleet(tmp_path, "filters", 0)
    held = fleet.model.bundle
    whole, own = params(held, 0), base(held)
    for device, names in {"a": ["head.bias"], "b": ["head.weight", "head.bias"], "c": ["stem.conv.weight"]}.items():
        changed = {name: whole[name] for name in names}
        fleet.store.put(device, held.digest, changed, {name: own[name] for name in names}, round=1, consent="serve")
    fleet.versions.look()
    for devices, together in (("a", 1), ("ab", 2), ("abc", 2), ("cc", 2), ("cab", 2)):
        jobs = [fleet.job(device, seed=i) for i, device in enumerate(devices)]
        fleet.runner.run(jobs)
        for job in jobs:
            names = {"a": ["head.bias"], "b": ["head.weight", "head.bias"], "c": ["stem.conv.weight"]}[job.device]
            got, state = answer(job), {name: whole[name] for name in names}
            want = _with(fleet, state, job.inputs["x"])
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert len(fleet.runner.together) == together
    assert fleet.told == ["personal_one_by_one"] * len(fleet.runner.apart) and len(fleet.told) == 1


def _with(fleet: Fleet, state: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    import lite_runtime
    from lite_runtime import bundle
    from tests.edge.gateway.personal.fleet import made

    own = lite_runtime.load(bundle.with_state(made(fleet.kind), state))
    return next(iter(own.run({"x": x}).values()))


def test_a_failing_store_fails_only_its_jobs(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "dense", 3)
    good = fleet.job("d0")
    fleet.runner.run([fleet.job("d0")])
    fleet.heads._heads["d0"] = fleet.versions.newest["d0"], fleet.heads.now("d0")
    (tmp_path / "personal.sqlite").write_bytes(b"no database" * 500)
    bad = fleet.job("d1")
    fleet.runner.run([bad, good])
    check(fleet, [(good, 0)])
    assert isinstance(bad.error, GatewayError) and bad.error.status == 503 and bad.outputs is None


def test_inputs_that_do_not_fit_fail_their_job(tmp_path: Path) -> None:
    for kind in ("dense", "filters"):
        (tmp_path / kind).mkdir()
        fleet = Fleet(tmp_path / kind, kind, 2)
        bad, good = fleet.job("d0", seed=1), fleet.job("d1", seed=2)
        bad.inputs = {"x": bad.inputs["x"][..., :-1]}
        fleet.runner.run([bad, good])
        check(fleet, [(good, 1)])
        assert bad.error is not None and bad.outputs is None


def test_warming_compiles_what_is_personal(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, "dense", 2)
    fleet.runner.warm(1.0)
    assert len(fleet.runner.together) == 4 and fleet.runner.nbytes > 0
    assert fleet.runner.cost.sizes[0] == 1 and fleet.runner.limit == 16
    (tmp_path / "empty").mkdir()
    empty = Fleet(tmp_path / "empty", "dense", 0)
    empty.runner.warm(1.0)
    assert not empty.runner.nbytes and not empty.runner.cost.sizes


def test_the_service(tmp_path: Path) -> None:
    import asyncio

    fleet = Fleet(tmp_path, "dense", 3)
    model = fleet.model

    async def serve() -> None:
        personal = Personal(fleet.store.path, devices=8, refresh=0.01)
        await personal.start()
        runner = personal.runner(model, "predict", ports_of(model), {"x": (7,)}, name="m", version="1")
        jobs = [(fleet.job(f"d{i}", seed=i), i) for i in range(3)]
        unknown = fleet.job("nobody")
        assert personal.admit(unknown, model) and not unknown.device
        for job, _ in jobs:
            if not personal.admit(job, model):
                await personal.ready(job, model)
        runner.run([job for job, _ in jobs])
        check(fleet, [(job, seed) for job, seed in jobs])
        figures = personal.figures(model)
        assert {key: figures[key] for key in ("devices", "capacity", "hits", "misses")} == {
            "devices": 3, "capacity": 8, "hits": 3, "misses": 1,
        }  # fmt: skip
        assert figures["bytes"] == personal.heads(model).nbytes + runner.nbytes
        await personal.close()

    asyncio.run(serve())


def test_new_sizes_are_compiled_before_their_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a thread of the service's: jobs may be run by the event loop's, which compiling would hold up for seconds."""
    import asyncio

    fleet = Fleet(tmp_path, "dense", 2)

    async def serve() -> None:
        personal = Personal(fleet.store.path)
        await personal.start()
        runner = personal.runner(fleet.model, "predict", ports_of(fleet.model), {"x": (7,)}, name="m", version="1")
        job = fleet.job("d1", seed=1)
        assert not personal.admit(job, fleet.model) and not runner.together
        await personal.ready(job, fleet.model)
        assert len(runner.together) == 4
        monkeypatch.setattr(runner, "_build", None)
        runner.run([job])
        check(fleet, [(job, 1)])
        assert runner.cost.predict(1) is not None
        await personal.close()

    asyncio.run(serve())
