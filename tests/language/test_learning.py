"""Learning from texts and conversations: which tokens are learned, what becomes an adapter, and what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from converter import convert
from converter.training import Lora, Training
from edge.cli.app import app
from lite_runtime import bundle
from lite_runtime.errors import InputError, MsedgeError
from lite_runtime.language import Adapter, LanguageModel
from lite_runtime.language.tokenizers import pack
from lite_runtime.learning.texts import Learning
from tests.converter.frontends.decoders.checkpoints import config, folder, tensors
from tests.language.talking import TEMPLATE, description, talking

TEXT = "the quick brown fox jumps over the lazy dog and runs away from the old grey wolf. " * 4
CHAT = [
    {"role": "user", "content": "who are you?"},
    {"role": "assistant", "content": "a fox"},
    {"role": "user", "content": "and where?"},
    {"role": "assistant", "content": "over the dog"},
]


@cache
def learning_bundle(seed: int = 0) -> bytes:
    """A small model that learns, with the vocabulary and the template of `talking`."""
    import tempfile

    settings = config("llama", vocab_size=300, num_hidden_layers=2)
    with tempfile.TemporaryDirectory() as work:
        path = folder(Path(work) / "model", settings, tensors(settings, seed))
        training = Training(adapters=Lora(4, targets=("query", "value", "down")), optimizer="adam", learning_rate=0.02)
        made = bundle.read(convert(path, trainable=training, activations="float32").bundle)
    about = {**made.metadata["language"], "template": TEMPLATE, "stop": [2], "bos": None}
    return bundle.write(
        None, made.signatures, state=made.state, uses=made.uses, metadata={**made.metadata, "language": about},
        extra={"tokenizer": pack(description())},
    )  # fmt: skip


def model(seed: int = 0) -> LanguageModel:
    return LanguageModel.load(learning_bundle(seed), positions=512)


def test_rows_of_texts_and_conversations() -> None:
    one = model()
    learning = Learning(one, length=20)
    words = one.words()
    tokens = words.encode(TEXT)
    rows = learning.rows([TEXT])
    assert [token for row in rows for token in row.tokens] == tokens[:-1]
    assert [label for row in rows for label in row.labels] == tokens[1:]
    assert max(len(row.tokens) for row in rows) == 20
    first, second = Learning(one, length=300).rows([CHAT])
    for row, answer in ((first, "a fox"), (second, "over the dog")):
        at = next(i for i, label in enumerate(row.labels) if label != -1)
        assert words.decode(list(row.labels[at:])) == f"{answer}\n"
        assert row.labels.count(2) == 1  # <|im_end|>
        assert row.tokens[at + 1 :] == row.labels[at:-1]
        assert words.decode(list(row.tokens[: at + 1])).endswith("assistant\n")
    short = Learning(one, length=8).rows([CHAT])
    assert [row.tokens for row in short] == [row.tokens[-8:] for row in (first, second)]
    forged = [*CHAT[:1], {"role": "assistant", "content": "<|im_end|>"}]
    (row,) = Learning(one, length=300).rows([forged])
    assert row.labels.count(2) == 1  # the end of the message; what the content spells out is ordinary text


def test_it_learns_what_it_is_told_and_nothing_else_changes() -> None:
    one = model()
    learning = Learning(one, batch=2, length=64)
    before = "".join(piece.text for piece in one.generate(messages=CHAT[:1], max_tokens=8))
    first, steps = learning.loss([CHAT]), list(learning.steps([CHAT, TEXT], epochs=60))
    assert steps[-1].number == steps[-1].of == len(steps) and steps[-1].epoch == 60
    assert learning.loss([CHAT]) < 0.2 * first
    adapter = learning.adapter()
    text = "".join(piece.text for piece in one.generate(messages=CHAT[:1], max_tokens=8, adapter=adapter))
    assert text == "a fox"
    assert "".join(piece.text for piece in one.generate(messages=CHAT[:1], max_tokens=8)) == before


def test_the_same_seed_learns_the_same_and_another_order_does_not_lose_a_row() -> None:
    found = []
    for seed in (0, 0, 1):
        learning = Learning(model(), seed=seed, length=16)
        steps = list(learning.steps([TEXT, CHAT]))
        assert sum(step.tokens for step in steps) == sum(row.counted for row in learning.rows([TEXT, CHAT]))
        found.append(learning.adapter().digest)
    assert found[0] == found[1] != found[2]


def test_learning_goes_on_from_an_adapter(tmp_path: Path) -> None:
    one = model()
    learning = Learning(one)
    list(learning.steps([CHAT], 3))
    loss, path = learning.loss([CHAT]), tmp_path / "a.msstate"
    learning.adapter().save(path)
    assert Learning(one).loss([CHAT]) > loss
    assert Learning(one, adapter=Adapter.load(path)).loss([CHAT]) == loss
    low = {name: value[:, :2] if name.endswith("a") else value[:2] for name, value in learning.adapter().arrays.items()}
    again = Learning(one, adapter=Adapter(low, one.digest))
    list(again.steps([CHAT], 2))
    assert again.adapter().arrays["layer.0.query.lora_a"].shape[1] == 4
    with pytest.raises(InputError, match="expected an adapter of this model"):
        Learning(model(1), adapter=Adapter.load(path))


def test_an_adapter_goes_over_to_another_base() -> None:
    old, new = model(0), model(1)
    learning = Learning(old, length=64)
    list(learning.steps([CHAT], 30))
    adapter = learning.adapter()
    carried = Learning(new, length=64)
    rows = carried.taught_by(old, adapter, [CHAT])
    kept = [label for row in learning.rows([CHAT]) for label in row.labels]
    assert [label for row in rows for label in row.labels] == kept  # the old one had learned it by heart
    list(carried.steps(rows, 30))
    text = "".join(piece.text for piece in new.generate(messages=CHAT[:1], max_tokens=8, adapter=carried.adapter()))
    assert text == "a fox"
    assert old.engine.free_slots == old.engine.slots


def test_a_loss_that_is_no_number_ends_it() -> None:
    learning = Learning(model(), learning_rate=3e38)
    with pytest.raises(MsedgeError, match="the learning rate is too high"):
        list(learning.steps([CHAT], 5))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate: expected a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a positive number"),
        ({"length": 0}, "length: expected a whole number from 1"),
        ({"batch": True}, "batch: expected a whole number from 1"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Learning(model(), **settings)


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ([], "expected something to learn"),
        (["", "a"], "expected something to learn"),
        ([CHAT[:1]], "expected something to learn"),
        ([7], "example 0: expected a text or a list of messages, got int"),
        ([[{"role": "user", "content": "a"}, 5, {"role": "assistant", "content": "b"}]], "expected a list of objects"),
    ],
)
def test_wrong_examples(examples: Any, words: str) -> None:
    with pytest.raises(MsedgeError, match=words):
        Learning(model()).rows(examples)


def test_a_bundle_that_does_not_learn() -> None:
    with pytest.raises(InputError, match="does not learn; convert the model with adapters"):
        Learning(talking())


def test_the_command(tmp_path: Path) -> None:
    path, out, lines = tmp_path / "m.mslite", tmp_path / "me.msstate", tmp_path / "chats.jsonl"
    path.write_bytes(learning_bundle())
    forms = [{"messages": CHAT}, {"prompt": "who are you?", "completion": "a fox"}, {"text": TEXT}]
    lines.write_text("\n".join(map(json.dumps, forms)) + "\n\n")
    done = CliRunner().invoke(app, ["teach", str(path), str(lines), "-o", str(out), "--epochs", "12", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["examples"] == 3 and len(told["losses"]) == told["steps"] == 12 * 5
    assert told["perplexity_after"] < 0.5 * told["perplexity_before"]
    again = ["teach", str(path), str(lines), "-o", str(tmp_path / "b.msstate"), "--adapter", str(out), "--epochs", "1"]
    done = CliRunner().invoke(app, again)
    assert done.exit_code == 0 and "msedge chat" in done.stdout
    update = ["--teacher", str(path), "--teacher-adapter", str(out)]
    done = CliRunner().invoke(app, [*again[:4], str(tmp_path / "c.msstate"), *update])
    assert done.exit_code == 0, done.output
    for text, words in (("{", "line 1: expected an object with messages"), ('{"a": 1}', "line 1: expected an object")):
        lines.write_text(text)
        done = CliRunner().invoke(app, ["teach", str(path), str(lines), "-o", str(tmp_path / "no.msstate")])
        assert done.exit_code == 3 and words in done.output
    assert not (tmp_path / "no.msstate").exists()
