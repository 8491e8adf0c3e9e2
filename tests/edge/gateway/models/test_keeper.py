"""Memory limits, events, and random sequences of operations."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.models.entry import Asleep
from edge.gateway.models.served import Served


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 300))


def heavy(make: Any, factor: float) -> Any:
    return make(factor, metadata={"padding": np.random.default_rng(int(factor)).bytes(5000).hex()})


def test_all_versions_of_a_model_count_under_the_cap(place: Any, make: Any) -> None:
    for version in (1, 2, 3):
        place.put(f"a/{version}/model.mslite", heavy(make, float(version)))
    place.put("a/config.toml", 'versions = "all"')
    size = (place.root / "a/1/model.mslite").stat().st_size

    async def scenario() -> None:
        repository = place.repository(memory=5 * size)
        await repository.start()
        assert not repository.served() and "leave too little" in repository.index()[0]["reason"]
        assert place.forgotten == place.prepared == ["a/3", "a/2"]
        with pytest.raises(GatewayError, match="leave too little"):
            await repository.wake("a")
        place.put("a/config.toml", "versions = [1, 3]")
        await repository.poll()
        await repository.poll()
        await repository.wake("a")
        assert [served.version for served in repository.served()] == ["3", "1"]
        await repository.stop()

    run(scenario)


def test_a_model_found_too_large_is_not_loaded_again(place: Any, make: Any) -> None:
    place.put("a.mslite", make())
    size = (place.root / "a.mslite").stat().st_size

    async def scenario() -> None:
        def prepare(served: Served) -> None:
            served.resident += 20 * size

        repository = place.repository(prepare=prepare, memory=10 * size)
        await repository.start()
        for _ in range(3):
            with pytest.raises(Asleep):
                repository.route("a")
            with pytest.raises(GatewayError, match="leave too little") as caught:
                await repository.wake("a")
            assert caught.value.retry_after
        assert place.prepared == place.forgotten == ["a/1"]
        await repository.stop()

    run(scenario)


def test_models_that_grew_beyond_the_cap_are_unloaded_at_the_next_check(place: Any, make: Any) -> None:
    for name in "ab":
        place.put(f"{name}.mslite", make())
    size = (place.root / "a.mslite").stat().st_size

    async def scenario() -> None:
        repository = place.repository(memory=10 * size)
        await repository.start()
        repository.route("a").acquire(2.0)
        repository.route("a").release()
        repository.route("b").used = 1.0
        repository.route("a").resident += 7 * size
        await repository.poll()
        assert [served.name for served in repository.served()] == ["a"] and repository.ready("b")
        repository.route("a").resident += 7 * size
        repository.route("a").acquire(3.0)
        await repository.poll()
        assert repository.route("a").in_flight == 1  # nothing that may go: it stays
        repository.route("a").release()
        await repository.stop()

    run(scenario)


def test_the_memory_of_one_inference_is_limited(place: Any, make: Any) -> None:
    place.put("a.mslite", make(width="w"))
    place.put("a.toml", "memory = 4096")

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        model = repository.route("a").model
        assert model.run({"x": np.ones((1, 4), np.float32)})["y"].shape == (1, 4)
        with pytest.raises(Exception, match="4096"):
            model.run({"x": np.ones((100, 1000), np.float32)})
        await repository.stop()

    run(scenario)


def test_events_name_models_that_already_answer(place: Any, make: Any) -> None:
    place.put("a.mslite", make())
    place.put("bad.mslite", b"x")

    async def scenario() -> None:
        told: list[tuple[str, str, bool]] = []

        def tell(event: str, facts: Any) -> None:
            answers = any(served.name == facts["model"] for served in repository.served())
            told.append((event, facts["model"], answers))

        repository = place.repository(tell=tell)
        await repository.start()
        await repository.load("a", '{"timeout": 0.5}')
        assert repository.route("a").config.timeout == 0.5
        await repository.unload("a")
        assert told == [
            ("version loaded", "a", True), ("version refused", "bad", False), ("model failed", "bad", False),
            ("model configured", "a", True), ("model unloaded", "a", False),
        ]  # fmt: skip
        await repository.stop()

    run(scenario)


def test_a_loading_model_is_listed_until_it_answers(place: Any, make: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository(autoload=False)
        await repository.start()
        seen: list[tuple[list[str], str, int]] = []

        async def watch(task: asyncio.Task[None]) -> None:
            while not task.done():
                row = repository.index()[0]
                if row["state"] == "LOADING":
                    with pytest.raises(GatewayError) as caught:
                        repository.route("a")
                    seen.append((repository.coming(), row["version"], caught.value.status))
                await asyncio.sleep(0)

        await watch(asyncio.create_task(repository.load("a")))
        assert seen and set(map(str, seen)) == {str((["a"], "1", 503))}
        place.put("a.mslite", make(2.0))
        task = asyncio.create_task(repository.load("a"))
        while not task.done():
            assert not repository.coming() and repository.ready("a")
            await asyncio.sleep(0)
        assert await task is None and not repository.coming()
        await repository.stop()

    run(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_anything_at_once_leaves_everything_in_order(place: Any, make: Any, factor: Any, seed: int) -> None:
    rng = random.Random(seed)
    names = ["a", "b", "c"]
    for name in names:
        place.put(f"{name}.mslite", heavy(make, 1.0))
    size = (place.root / "a.mslite").stat().st_size

    async def scenario() -> None:
        repository = place.repository(memory=7 * size, wake=1.0)
        await repository.start()
        statuses: set[int] = set()

        async def request(name: str) -> None:
            try:
                served = repository.route(name)
            except Asleep:
                await repository.wake(name)
                served = repository.route(name)
            served.acquire(rng.random())
            await asyncio.sleep(rng.random() / 200)
            assert not served.closed and factor(served) in (1.0, 2.0, 3.0)
            served.release()

        async def change(name: str) -> None:
            kind = rng.randrange(4)
            path = place.root / f"{name}.mslite"
            if kind == 0:
                place.put(f"{name}.mslite", b"broken")
            elif kind == 1:
                path.unlink(missing_ok=True)
            else:
                place.put(f"{name}.mslite", heavy(make, float(rng.randint(1, 3))))

        async def one() -> None:
            name = rng.choice([*names, "d"])
            await asyncio.sleep(rng.random() / 10)
            call = rng.choice([request] * 8 + [repository.load, repository.unload, change, lambda _: repository.poll()])
            try:
                await call(name)
            except GatewayError as error:
                statuses.add(error.status)

        await asyncio.gather(*(one() for _ in range(150)))
        assert statuses <= {400, 404, 503} and statuses
        for name in names:
            place.put(f"{name}.mslite", heavy(make, 3.0))
        for name in names:
            await repository.load(name)
        await asyncio.gather(*(request(name) for name in names), return_exceptions=True)
        assert all(served.in_flight == 0 for served in repository.served())
        assert repository.nbytes <= 7 * size
        assert len(place.prepared) - len(place.forgotten) == len(repository.served())
        await repository.stop()
        assert sorted(place.prepared) == sorted(place.forgotten)
        assert not repository.served() and repository.nbytes == 0

    run(scenario)
