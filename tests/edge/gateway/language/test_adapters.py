"""Adapters of people behind a gateway: OpenAI's own client, several in one batch, files that come, change and break."""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from edge.gateway.access.tokens import add
from edge.gateway.errors import GatewayError
from edge.gateway.language.adapters import Adapters
from lite_runtime import bundle
from lite_runtime.language import Adapter
from lite_runtime.language.engine import Part
from tests.edge.gateway.language.test_openai import host
from tests.edge.gateway.live import Live, live
from tests.language.talking import talking, talking_bundle
from tests.language.tiny import Tiny
from tests.waiting import until

PEOPLE = [f"person{i}" for i in range(5)]
PROMPT = "Once upon a time there was a model that all share. "
BUNDLE = talking_bundle(stop=[])
DIGEST = bundle.read(BUNDLE).digest


def of(number: int) -> Adapter:
    return Adapter(Tiny().adapter(number).arrays, DIGEST)


def alone(prompt: str, adapter: Adapter | None, **options: Any) -> str:
    from lite_runtime.language import LanguageModel

    model = LanguageModel.load(BUNDLE)
    return "".join(piece.text for piece in model.generate(prompt, adapter=adapter, **options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a folder of adapters."""
    made = tmp_path_factory.mktemp("adapters")
    (made / "tiny.mslite").write_bytes(BUNDLE)
    (made / "people/tiny").mkdir(parents=True)
    for i, name in enumerate(PEOPLE):
        of(i).save(made / f"people/tiny/{name}.msstate")
    return made


def serving(folder: Path, **flags: Any) -> Any:
    told = {"language__adapters": str(folder / "people"), "language__adapters_loaded": 3, **flags}
    return live({"tiny": folder / "tiny.mslite"}, **told)


def asking(served: Live, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.address}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Live]:
    with serving(folder) as made:
        yield made


@pytest.fixture(scope="module")
def client(served: Live) -> Iterator[openai.OpenAI]:
    with asking(served) as made:
        yield made


def test_models_are_listed_with_their_adapters(client: openai.OpenAI) -> None:
    listed = [*client.models.list()]
    assert [model.id for model in listed] == ["tiny", *(f"tiny:{name}" for name in PEOPLE)]
    assert {getattr(model, "parent", None) for model in listed[1:]} == {"tiny"}
    found = client.models.retrieve("tiny:person2")
    assert found.id == "tiny:person2" and found.object == "model"
    for name in ("tiny:nobody", "tiny:", "other:person2"):
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve(name)


def test_several_adapters_in_one_batch(client: openai.OpenAI, served: Live) -> None:
    """Five people and one without an adapter share three slots; each gets what the model says to it alone."""
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0.8, "seed": 7}
    want = [alone(PROMPT, adapter, **options) for adapter in (None, *map(of, range(5)))]
    assert len(set(want)) == 6

    def ask(name: str) -> str:
        found = client.completions.create(model=name, prompt=PROMPT, **options)
        assert found.model == name
        return found.choices[0].text

    names = ["tiny", *(f"tiny:{name}" for name in PEOPLE)]
    together: list[int] = []
    engine, plain = host(served).engine, host(served).engine.run

    def counted(parts: list[Part], **told: Any) -> Any:
        together.append(len({part.sequence.adapter for part in parts}))
        return plain(parts, **told)

    engine.run = counted
    try:
        with ThreadPoolExecutor(12) as pool:
            assert [*pool.map(ask, names * 2)] == want * 2
    finally:
        engine.run = plain
    assert max(together) >= 3


def test_streams_choices_and_prefixes(client: openai.OpenAI) -> None:
    prompt = "Nobody asks this elsewhere. " + PROMPT * 3
    asked: dict[str, Any] = {"model": "tiny:person1", "prompt": prompt, "max_tokens": 12, "seed": 3}
    events = [*client.completions.create(**asked, stream=True)]
    told = "".join(e.choices[0].text for e in events if e.choices)
    assert told == alone(prompt, of(1), max_tokens=12, temperature=1.0, seed=3)
    choices = client.completions.create(**asked, n=3).choices
    assert [c.text for c in choices] == [
        alone(prompt, of(1), max_tokens=12, temperature=1.0, seed=3 + i) for i in range(3)
    ]

    def cached(name: str) -> int:
        found = client.completions.create(**{**asked, "model": name})
        assert found.usage is not None and found.usage.prompt_tokens_details is not None
        return found.usage.prompt_tokens_details.cached_tokens or 0

    assert cached("tiny:person1") > 30
    assert cached("tiny:person2") == 0 and cached("tiny:person2") > 30


def test_files_come_change_and_go(client: openai.OpenAI, folder: Path) -> None:
    path = folder / "people/tiny/new.msstate"
    asked: dict[str, Any] = {"model": "tiny:new", "prompt": "The cat", "max_tokens": 10, "temperature": 0}
    with pytest.raises(openai.NotFoundError, match="unknown adapter 'new' of model 'tiny'"):
        client.completions.create(**asked)
    for number in (7, 8):
        of(number).save(path)
        assert client.completions.create(**asked).choices[0].text == alone("The cat", of(number), max_tokens=10)
    path.unlink()
    with pytest.raises(openai.NotFoundError):
        client.completions.create(**asked)


def test_broken_files_are_refused_and_harm_nobody(client: openai.OpenAI, folder: Path) -> None:
    path = folder / "people/tiny/broken.msstate"
    good = (folder / "people/tiny/person0.msstate").read_bytes()
    other = Adapter(of(0).arrays, "5" * 64)
    nan = Adapter({**of(0).arrays, "layer.0.query.lora_a": np.full((64, 3), np.nan, np.float32)}, DIGEST)
    less = Adapter({"layer.0.query.lora_a": np.zeros((64, 3), np.float32)}, DIGEST)
    contents = [b"", b"nonsense", good[:-50], good[: len(good) // 2], bytes(len(good)), good + bytes(2 << 20)]
    for adapter in (other, nan, less):
        adapter.save(path)
        contents.append(path.read_bytes())
    asked: dict[str, Any] = {"prompt": "The cat", "max_tokens": 8, "temperature": 0}
    running = client.completions.create(model="tiny:person0", prompt=PROMPT, max_tokens=200, temperature=0, stream=True)
    first = next(iter(running)).choices[0].text
    for data in contents:
        path.write_bytes(data)
        with pytest.raises(openai.UnprocessableEntityError, match="adapter 'broken' of model 'tiny' cannot be used"):
            client.completions.create(model="tiny:broken", **asked)
    rest = "".join(event.choices[0].text for event in running if event.choices)
    assert first + rest == alone(PROMPT, of(0), max_tokens=200)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(model="tiny:broken", **asked)
    path.unlink()


@pytest.mark.parametrize("name", ["tiny:", "tiny:../tiny/person0", "tiny:person0\n", "tiny:a:b", "tiny:" + "a" * 300])
def test_names_that_are_none(client: openai.OpenAI, name: str) -> None:
    with pytest.raises(openai.NotFoundError, match="unknown adapter"):
        client.completions.create(model=name, prompt="a")


def test_a_file_is_read_once(folder: Path) -> None:
    files, engine = Adapters(str(folder / "people"), 2), talking().engine
    with pytest.raises(GatewayError, match="bundle"):
        files.load("tiny", "person0", engine)  # the model of the other tests has other ends
    from lite_runtime.language import LanguageModel

    engine = LanguageModel.load(BUNDLE).engine
    first = files.load("tiny", "person0", engine)
    assert files.load("tiny", "person0", engine) is first
    for name in ("person1", "person2"):
        files.load("tiny", name, engine)
    assert files.load("tiny", "person0", engine) is not first and len(files._read) == 2
    assert Adapters("", 2).names("tiny") == [] and files.names("none") == []
    with pytest.raises(GatewayError, match="unknown adapter"):
        Adapters("", 2).load("tiny", "person0", engine)


def test_metrics(client: openai.OpenAI, served: Live) -> None:
    client.completions.create(model="tiny:person3", prompt="a", max_tokens=1)
    text = urllib.request.urlopen(f"{served.address}/metrics").read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith("msedge_language_adapters{")]
    assert 1 <= float(line.split()[-1]) <= 3


def test_a_client_has_its_own_adapter_only(folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    keys = {name: add(tokens, name, ["infer"], devices=(name,)) for name in ("person0", "person1")}
    keys["all"] = add(tokens, "all", ["infer"], devices=("*",))
    keys["none"] = add(tokens, "none", ["infer"])
    keys["other"] = add(tokens, "other", ["infer"], models=("big",), devices=("*",))
    asked: dict[str, Any] = {"prompt": "The cat", "max_tokens": 5, "temperature": 0}
    with serving(folder, access__tokens=str(tokens)) as made:
        clients = {name: asking(made, key) for name, key in keys.items()}
        for i in range(2):
            found = clients[f"person{i}"].completions.create(model=f"tiny:person{i}", **asked)
            assert found.choices[0].text == alone("The cat", of(i), max_tokens=5)
        for who, name in (
            ("person0", "person1"),
            ("none", "person0"),
            ("person0", "nobody"),
            ("other", "person0"),
        ):
            with pytest.raises(openai.PermissionDeniedError):
                clients[who].completions.create(model=f"tiny:{name}", **asked)
        clients["none"].completions.create(model="tiny", **asked)
        listed = {who: [model.id for model in one.models.list()] for who, one in clients.items()}
        assert listed["person0"] == ["tiny", "tiny:person0"] and listed["none"] == ["tiny"]
        assert listed["all"][1:] == [f"tiny:{name}" for name in PEOPLE] and listed["other"] == []
        assert clients["person0"].models.retrieve("tiny:person0").id == "tiny:person0"
        with pytest.raises(openai.NotFoundError):
            clients["person0"].models.retrieve("tiny:person1")
        with pytest.raises(openai.AuthenticationError):
            asking(made).models.retrieve("tiny:person0")
        for one in clients.values():
            one.close()


def test_texts_that_are_left_give_their_slots_back(folder: Path) -> None:
    with serving(folder, language__adapters_loaded=1) as made, asking(made) as client:
        streams = [
            client.completions.create(model=f"tiny:{name}", prompt=PROMPT, max_tokens=400, temperature=0, stream=True)
            for name in PEOPLE[:1]
        ]
        next(iter(streams[0]))
        streams[0].close()
        found = client.completions.create(model="tiny:person1", prompt="The cat", max_tokens=5, temperature=0)
        assert found.choices[0].text == alone("The cat", of(1), max_tokens=5)
        slots = host(made)._scheduler.slots
        until(lambda: all(not held.texts for held in slots._used.values()))
        assert len(slots) == 1


def test_a_model_without_adapters(tmp_path: Path) -> None:
    tiny = Tiny()
    about = {key: value for key, value in tiny.about.items() if key != "adapters"}
    (tmp_path / "plain.mslite").write_bytes(bundle.write(None, {"predict": tiny.graph}, metadata={"language": about}))
    (tmp_path / "people/plain").mkdir(parents=True)
    of(0).save(tmp_path / "people/plain/a.msstate")
    with (
        live({"plain": tmp_path / "plain.mslite"}, language__adapters=str(tmp_path / "people")) as made,
        asking(made) as client,
        pytest.raises(openai.UnprocessableEntityError, match="takes no adapters"),
    ):
        client.completions.create(model="plain:a", prompt=[5])
