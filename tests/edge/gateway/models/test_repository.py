from __future__ import annotations

import asyncio
import base64
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.models.entry import Asleep
from edge.gateway.models.repository import Repository
from edge.gateway.models.uploads import files_of
from edge.gateway.sources.listing import Folder, Listing
from tests.waiting import until


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 300))


def states(repository: Repository) -> dict[str, str]:
    return {f"{r['name']}/{r.get('version', '')}": r["state"] for r in repository.index()}


def reason(repository: Repository, name: str) -> str:
    return " ".join(r["reason"] for r in repository.index() if r["name"] == name)


def refusal(repository: Repository, *given: str) -> tuple[int, str]:
    with pytest.raises(GatewayError) as caught:
        repository.route(*given)
    return caught.value.status, str(caught.value)


def test_existing_models_are_loaded_and_broken_ones_are_reported(place: Any, make: Any, factor: Any) -> None:
    place.put("a/1/model.mslite", make(1.0))
    place.put("a/2/model.mslite", make(2.0))
    place.put("bad.mslite", b"no bundle")
    place.put("wrong.mslite", make(2.0, golden=3.0))
    place.put("odd/1/model.mslite", make())
    place.put("odd/config.toml", "x = 1")

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        assert states(repository) == {
            "a/2": "READY", "bad/1": "UNAVAILABLE", "odd/": "UNAVAILABLE", "wrong/1": "UNAVAILABLE",
        }  # fmt: skip
        assert "not a bundle" in reason(repository, "bad") and "self-test" in reason(repository, "wrong")
        assert "config.toml" in reason(repository, "odd")
        assert [r["name"] for r in repository.index(ready_only=True)] == ["a"]
        assert factor(repository.route("a")) == 2.0 == factor(repository.route("a", "2"))
        assert refusal(repository, "nothing")[0] == 404
        assert refusal(repository, "a", "7")[0] == 404 == refusal(repository, "a", "canary")[0]
        assert refusal(repository, "a", "", "../x")[0] == 404
        assert refusal(repository, "bad")[0] == 503 == refusal(repository, "bad", "1")[0]
        assert repository.ready("a") and not repository.ready("bad") and not repository.ready("a", "9")
        with pytest.raises(GatewayError):
            repository.ready("nothing")
        assert repository.metadata("a")["versions"] == ["2"]
        assert repository.configuration("a", "2")["name"] == "a"
        assert place.prepared == ["a/2"]
        await repository.stop()
        assert place.forgotten == ["a/2"] and refusal(repository, "a")[0] == 503

    run(scenario)


def test_if_the_newest_is_broken_the_next_older_one_is_served(place: Any, make: Any) -> None:
    place.put("a/1/model.mslite", make(1.0))
    place.put("a/2/model.mslite", make(2.0))
    place.put("a/3/model.mslite", b"broken")

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        assert states(repository) == {"a/2": "READY", "a/3": "UNAVAILABLE"}
        assert repository.route("a").version == "2"
        assert refusal(repository, "a", "3")[0] == 503
        await repository.stop()

    run(scenario)


def test_labels_split_and_shadow(place: Any, make: Any) -> None:
    for version in (1, 2, 3):
        place.put(f"a/{version}/model.mslite", make(float(version)))
    place.put("a/config.toml", (
        'labels = {stable = 1, canary = "latest", gone = 9}\nsplit = {stable = 3, canary = 1}\n'
        'shadow = {version = 2, fraction = 0.5}'
    ))  # fmt: skip

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        assert states(repository) == {"a/1": "READY", "a/2": "READY", "a/3": "READY", "a/9": "UNAVAILABLE"}
        got = Counter(repository.route("a").version for _ in range(400))
        assert abs(got["1"] - 300) < 10 and abs(got["3"] - 100) < 10 and not got["2"]
        assert len({repository.route("a", "", "", "me").version for _ in range(20)}) == 1
        assert repository.route("a", "canary").version == "3" == repository.route("a", "", "canary").version
        assert repository.route("a", "1", "stable").version == "1"
        assert refusal(repository, "a", "2", "stable")[0] == 400
        assert refusal(repository, "a", "gone")[0] == 503
        shadow = repository.route("a", "1").shadow
        assert shadow is not None and shadow.target is repository.route("a", "2") and shadow.target.shadow is None
        rows = {r["version"]: r for r in repository.snapshot()}
        assert rows["1"]["labels"] == ["stable"] and rows["1"]["share"] == 0.75
        assert rows["2"]["shadow"]["fraction"] == 0.5 and rows["3"]["bytes"] > 0
        await repository.stop()

    run(scenario)


def test_a_broken_stable_version_is_not_replaced(place: Any, make: Any) -> None:
    place.put("a/1/model.mslite", b"broken")
    place.put("a/2/model.mslite", make())
    place.put("a/config.toml", "labels = {stable = 1}")

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        assert refusal(repository, "a") == (503, "model 'a' is not ready: the version labelled 'stable' is not loaded")
        assert repository.route("a", "2").version == "2"
        await repository.stop()

    run(scenario)


def test_a_new_file_is_loaded_at_the_second_check_and_a_broken_one_never(place: Any, make: Any, factor: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        first = repository.route("a")
        first.acquire(0.0)
        place.put("a.mslite", make(2.0))
        place.put("b.mslite", make(5.0))
        await repository.poll()
        assert repository.route("a") is first and refusal(repository, "b")[0] == 404
        await repository.poll()
        assert factor(repository.route("a")) == 2.0 and factor(repository.route("b")) == 5.0
        assert first.retired and not first.closed and factor(first) == 1.0  # its request is not answered yet
        first.release()
        assert first.closed and place.forgotten == ["a/1"]

        good = make(3.0)
        place.put("a.mslite", good[: len(good) // 2])
        for _ in range(3):
            await repository.poll()
        assert factor(repository.route("a")) == 2.0
        assert "cut short" in reason(repository, "a") and states(repository)["a/1"] == "READY"
        tries = len(place.events)
        await repository.poll()
        assert len(place.events) == tries  # the same broken file is not tried again
        place.put("a.mslite", good)
        await repository.poll()
        await repository.poll()
        assert factor(repository.route("a")) == 3.0 and not reason(repository, "a")

        (place.root / "b.mslite").unlink()
        await repository.poll()
        await repository.poll()
        assert refusal(repository, "b")[0] == 404 and states(repository) == {"a/1": "READY"}
        await repository.stop()

    run(scenario)


def test_touching_a_file_changes_nothing(place: Any, make: Any) -> None:
    path = place.put("a.mslite", make())

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        before = repository.route("a")
        path.touch()
        place.put("a.toml", "labels = {stable = 1}")
        await repository.poll()
        await repository.poll()
        assert repository.route("a") is before is repository.route("a", "stable")
        place.put("a.toml", "labels = {")
        await repository.poll()
        await repository.poll()
        assert repository.route("a", "stable") is before
        assert "a.toml" in reason(repository, "a") and states(repository) == {"a/1": "READY"}
        await repository.stop()

    run(scenario)


def test_loading_and_unloading(place: Any, make: Any, factor: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository(autoload=False)
        await repository.start()
        assert states(repository) == {"a/": "UNAVAILABLE"} and refusal(repository, "a")[0] == 503
        await repository.load("a")
        assert factor(repository.route("a")) == 1.0
        await repository.unload("a", unload_dependents=True)
        assert refusal(repository, "a") == (503, "model 'a' is not ready: unloaded")
        await repository.poll()
        assert not repository.ready("a")
        for wrong in ("b", "../a", "", "a/b"):
            with pytest.raises(GatewayError) as caught:
                await repository.load(wrong)
            assert caught.value.status == (404 if wrong == "b" else 400)
            with pytest.raises(GatewayError):
                await repository.unload(wrong)
        assert states(repository) == {"a/": "UNAVAILABLE"}
        await repository.stop()

    run(scenario)


def test_an_unloaded_model_stays_unloaded_until_it_is_loaded(place: Any, make: Any, factor: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        await repository.unload("a")
        place.put("a.mslite", make(2.0))
        await repository.poll()
        await repository.poll()
        assert refusal(repository, "a")[0] == 503
        await repository.load("a")
        assert factor(repository.route("a")) == 2.0
        await repository.stop()

    run(scenario)


def parameters(files: dict[str, bytes]) -> dict[str, str]:
    return {f"file:{path}": base64.b64encode(data).decode() for path, data in files.items()}


def test_files_and_configuration_of_a_load_request(place: Any, make: Any, factor: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        files = files_of(parameters({"3/model.mslite": make(3.0), "4/model.mslite": make(4.0)}))
        await repository.load("a", json.dumps({"version_policy": {"all": {}}, "labels": {"stable": 3}}), files)
        assert states(repository) == {"a/3": "READY", "a/4": "READY"}
        assert factor(repository.route("a")) == 3.0 and factor(repository.route("a", "4")) == 4.0
        place.put("a.mslite", make(9.0))
        await repository.poll()
        await repository.poll()
        assert factor(repository.route("a")) == 3.0

        before = repository.index()
        broken = files_of(parameters({"5/model.mslite": b"no bundle"}))
        for config, given in (
            (None, broken), ("{", None), ('{"x": 1}', None), ('{"name": "b"}', None),
            ('{"input": [{"name": "z"}]}', None), ('{"versions": [77]}', None), (None, {"config.toml": b""}),
        ):  # fmt: skip
            with pytest.raises(GatewayError):
                await repository.load("a", config, given)
            assert repository.index() == before and factor(repository.route("a")) == 3.0

        await repository.load("a")
        assert factor(repository.route("a")) == 9.0
        said = repository.configuration("a")
        await repository.load("a", json.dumps({**said, "max_batch_size": 7}))
        assert repository.configuration("a") == {**said, "max_batch_size": 7}
        await repository.load("new", None, files_of(parameters({"model.mslite": make(8.0)})))
        assert factor(repository.route("new")) == 8.0
        await repository.unload("new")
        assert refusal(repository, "new")[0] == 404
        await repository.stop()

    run(scenario)


@pytest.mark.parametrize(
    "path",
    ["", "../model.mslite", "/etc/passwd", "1/../model.mslite", "0/model.mslite", "1/x", "1/model.mslite\n", "x"],
)
def test_paths_of_files_that_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(GatewayError, match=r"expected file:VERSION/model\.mslite"):
        files_of({f"file:{path}": ""})


@pytest.mark.parametrize("value", ["not base64!", 5, None, "é", "AAA"])
def test_contents_that_are_no_base64_are_refused(value: Any) -> None:
    with pytest.raises(GatewayError, match="expected base64"):
        files_of({"config": "x", "file:model.mslite": value})


def test_a_load_and_an_unload_at_once_are_both_answered_and_the_last_wins(place: Any, make: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        rng = random.Random(3)
        for _ in range(10):
            calls = [rng.choice([repository.load, repository.unload]) for _ in range(6)]
            found = await asyncio.gather(*(call("a") for call in calls))
            assert found == [None] * 6
            assert repository.ready("a") == (calls[-1] == repository.load)
        await repository.stop()
        assert len(place.forgotten) == len(place.prepared)

    run(scenario)


def test_requests_see_one_version_or_the_other_while_models_are_exchanged(place: Any, make: Any, factor: Any) -> None:
    place.put("a.mslite", make(1.0))

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        seen: list[float] = []
        done = asyncio.Event()

        async def client() -> None:
            while not done.is_set():
                served = repository.route("a")
                served.acquire(0.0)
                await asyncio.sleep(0.001)
                assert not served.closed
                seen.append(factor(served))
                served.release()

        clients = [asyncio.create_task(client()) for _ in range(4)]
        for k in (2.0, 3.0, 4.0):
            place.put("a.mslite", make(k))
            await repository.load("a")
            assert factor(repository.route("a")) == k
        await asyncio.sleep(0.01)
        done.set()
        await asyncio.gather(*clients)
        assert set(seen) <= {1.0, 2.0, 3.0, 4.0} and seen[-1] == 4.0
        assert place.forgotten == ["a/1"] * 3
        await repository.stop()

    run(scenario)


def heavy(make: Any, factor: float) -> Any:
    return make(factor, metadata={"padding": np.random.default_rng(int(factor)).bytes(5000).hex()})


def test_under_a_cap_the_least_recently_used_model_is_unloaded(place: Any, make: Any, factor: Any) -> None:
    for name in "abc":
        place.put(f"{name}.mslite", heavy(make, float(ord(name))))
    size = (place.root / "a.mslite").stat().st_size

    async def scenario() -> None:
        repository = place.repository(memory=5 * size, pinned=frozenset("a"))
        await repository.start()
        assert states(repository) == {"a/1": "READY", "b/1": "READY", "c/": "UNAVAILABLE"}
        assert repository.ready("c")  # it would answer, after it is loaded
        with pytest.raises(Asleep) as caught:
            repository.route("c")
        assert caught.value.status == 503 and caught.value.retry_after
        await asyncio.gather(*(repository.wake("c") for _ in range(5)))
        assert factor(repository.route("c")) == ord("c")
        assert states(repository) == {"a/1": "READY", "b/": "UNAVAILABLE", "c/1": "READY"}
        assert place.prepared == ["a/1", "b/1", "c/1"] and repository.nbytes <= 5 * size

        held = repository.route("c")
        held.acquire(0.0)
        with pytest.raises(GatewayError, match="leave too little"):
            await repository.wake("b")  # c is in use, a is pinned
        held.release()
        await repository.wake("b")
        assert factor(repository.route("b")) == ord("b")
        place.put("b.mslite", heavy(make, 7.0))
        await repository.poll()
        await repository.poll()
        assert factor(repository.route("b")) == 7.0  # the replaced model's memory is free for the new one
        place.put("c.mslite", heavy(make, 8.0))
        await repository.poll()
        await repository.poll()
        assert states(repository)["c/"] == "UNAVAILABLE"  # changes of an unloaded model do not load it
        await repository.wake("c")
        assert factor(repository.route("c")) == 8.0
        await repository.stop()

    run(scenario)


def test_a_request_for_an_unloaded_model_waits_for_its_loading(place: Any, make: Any) -> None:
    for name in "ab":
        place.put(f"{name}.mslite", heavy(make, float(ord(name))))
    size = (place.root / "a.mslite").stat().st_size

    async def scenario() -> None:
        repository = place.repository(memory=3 * size, wake=0.0)
        await repository.start()
        with pytest.raises(Asleep):
            await repository.wake("b")
        while [served.name for served in repository.served()] != ["b"]:
            await asyncio.sleep(0.001)
        assert repository.route("b").name == "b"
        with pytest.raises(GatewayError):
            await repository.wake("nothing")
        await repository.stop()

    run(scenario)


def test_a_source_that_cannot_be_read_changes_nothing(place: Any, make: Any) -> None:
    place.put("a.mslite", make())

    async def scenario() -> None:
        repository = place.repository()
        await repository.start()
        place.root.rename(place.root.with_name("away"))
        await repository.poll()
        (state,) = repository.sources()
        assert repository.ready("a") and state.state == "stale" and "expected a folder of models" in state.reason
        place.root.with_name("away").rename(place.root)
        await repository.poll()
        (state,) = repository.sources()
        assert state[1:4:2] == ("ok", "") and [event for event, _ in place.events if "source" in event] == [
            "source of models has a problem", "source of models is up to date again",
        ]  # fmt: skip
        await repository.stop()

    run(scenario)


class Slow:
    """A registry that answers when it is told to."""

    name, problem, read, remote, named = "slow", "", 0.0, True, frozenset[str]()

    def __init__(self) -> None:
        self.answer = threading.Event()

    def scan(self) -> dict[str, Listing]:
        if not self.answer.wait(60):
            raise GatewayError(503, "no answer")
        return {}


def test_a_slow_source_delays_neither_the_others_nor_the_end(
    place: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.gateway.models.repository.PATIENCE", 0.05)
    place.put("a.mslite", make())
    slow = Slow()

    async def scenario() -> None:
        repository = place.repository(slow, Folder(place.root))
        await repository.start()
        assert repository.ready("a") and repository.unread() == ["slow"]
        place.put("b.mslite", make())
        for _ in range(2):
            await repository.poll()
        assert repository.ready("b")
        slow.answer.set()
        await asyncio.to_thread(until, lambda: not repository.unread())
        await repository.stop()

        slow.answer.clear()
        again = place.repository(slow)
        await again.start()
        await again.stop()

    run(scenario)
    slow.answer.set()
