"""What a device learned goes over to the next version, and is found again by the version before."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import lite_runtime
from converter import convert
from edge.agent.agent import Agent
from edge.agent.application import Personal
from edge.agent.errors import AgentError
from edge.agent.personal.carrying import candidates, carried_here, learned
from edge.agent.personal.keeping import Kept
from edge.agent.update import Installed
from lite_runtime import bundle
from lite_runtime.graph import Array
from lite_runtime.learning import checkpoint
from tests.converter.training.models import mlp
from tests.edge.agent.shelf import APP, Here, Shelf
from tests.edge.agent.test_agent import QUICK, settle

FILE = "gestures.mslite"
RNG = np.random.default_rng(3)


@cache
def base(change: float = 0.0, classes: int = 3, head: float = 0.0) -> bytes:
    """A model whose head can be trained. change: of the weights below it. head: of its own."""
    model = mlp((6, 32, classes))
    rng = np.random.default_rng(11)
    for name, value in model.graph.initializers.items():
        by = change if name.startswith("body") else head
        assert value.const_value is not None
        old = value.const_value.numpy()
        value.const_value = ir.tensor((old + by * rng.standard_normal(old.shape)).astype(np.float32), name=name)
    return convert(model, trainable="head.*").bundle


@cache
def examples() -> dict[str, Array]:
    """What this owner's gestures look like: not what the model was trained on."""
    x = np.random.default_rng(5).standard_normal((240, 6)).astype(np.float32)
    labels = (x @ np.random.default_rng(6).standard_normal((6, 3))).argmax(-1)
    return {"x": x, "labels": labels.astype(np.int64)}


def taught(data: bytes, epochs: int = 60) -> dict[str, Array]:
    """The state of a bundle that learned from the examples."""
    model = lite_runtime.load(data)
    for _ in range(epochs):
        for at in range(0, 240, 24):
            model.run({name: rows[at : at + 24] for name, rows in examples().items()}, "train_step")
    return model.state_dict()


def accuracy(data: bytes, state: Mapping[str, Array] | None = None) -> float:
    found = lite_runtime.load(data, state=state).run(examples(), "evaluate")
    return float(found["correct"]) / 240


def words(tmp_path: Path, old: bytes, new: bytes, state: Mapping[str, Array], **more: Any) -> dict[str, Any]:
    for name, data in (("old", old), ("new", new)):
        (tmp_path / name).write_bytes(data)
    checkpoint.write(tmp_path / "state", state, bundle.read(old).digest)
    np.savez(tmp_path / "kept.npz", **examples())
    given = {"names": [], "examples": str(tmp_path / "kept.npz"), "epochs": 0, **more}
    return {**{name: str(tmp_path / name) for name in ("old", "new", "state")}, "into": str(tmp_path / "into"), **given}


def test_a_personal_head_keeps_its_gain(tmp_path: Path) -> None:
    old, new = base(), base(0.02)
    state = taught(old)
    made = carried_here(words(tmp_path, old, new, state))
    gain = accuracy(old, state) - accuracy(old)
    assert gain > 0.3
    assert made["how"] == "carried" and made["examples"] == 240 and made["left"] == []
    assert {"head.weight", "head.bias"} <= set(made["names"])
    assert made["before"]["accuracy"] == pytest.approx(accuracy(old, state))
    after = checkpoint.read(tmp_path / "into").state
    assert made["after"]["accuracy"] == pytest.approx(accuracy(new, after))
    assert accuracy(new, after) - accuracy(new) >= 0.95 * gain
    assert made["fresh"]["accuracy"] == pytest.approx(accuracy(new))


def test_without_examples_all_must_fit(tmp_path: Path) -> None:
    state = taught(base(), 2)
    made = carried_here(words(tmp_path, base(), base(0.02), state, examples=""))
    assert made["how"] == "carried" and made["before"] is None
    made = carried_here(words(tmp_path, base(), base(0.0, 5), state, examples=""))
    assert made["how"] == "initial" and made["left"] == ["head.bias", "head.weight"] and made["names"] == []


def test_what_is_worse_than_the_new_version_is_not_carried(tmp_path: Path) -> None:
    state = {name: np.array(-value, value.dtype) for name, value in taught(base()).items()}
    made = carried_here(words(tmp_path, base(), base(0.02), state))
    assert made["how"] == "initial" and not (tmp_path / "into").exists()
    assert made["after"] == made["fresh"]


def test_what_was_learned_is_what_moved(tmp_path: Path) -> None:
    held, state = bundle.read(base()), taught(base(), 1)
    found = learned(held, state, [])
    assert set(found) == {name for name in state if not name.startswith("hyper/")}
    assert set(learned(held, state, ["*.bias"])) == {"head.bias", "optimizer/momentum/head.bias"}
    assert learned(held, held.state, []) == {}
    assert carried_here(words(tmp_path, base(), base(0.02), held.state))["how"] == "nothing was learned"


def test_a_difference_is_added_to_a_head_that_was_improved() -> None:
    old, new, state = bundle.read(base()), bundle.read(base(0, 3, 0.5)), taught(base(), 1)
    made = candidates(old, new, learned(old, state, []))
    expected = new.state["head.bias"] + (state["head.bias"] - old.state["head.bias"])
    assert np.array_equal(made["shifted"]["head.bias"], expected)
    assert np.array_equal(made["carried"]["head.bias"], state["head.bias"])
    assert "shifted" not in candidates(old, bundle.read(base(0.02)), learned(old, state, []))


def test_a_head_is_fitted_again(tmp_path: Path) -> None:
    """Of a base that changed much, the old head is worth less: half of the examples teach it again, and all of them
    when that has shown to be good."""
    old, new = base(), base(0.5)
    made = carried_here(words(tmp_path, old, new, taught(old), epochs=40))
    assert made["how"] == "refitted"
    assert accuracy(new, checkpoint.read(tmp_path / "into").state) > made["after"]["accuracy"]
    plain = carried_here(words(tmp_path, old, new, taught(old)))
    assert made["after"]["accuracy"] > plain["after"]["accuracy"]


def test_fitting_begins_with_the_best_of_the_others(tmp_path: Path) -> None:
    """What was learned is worth nothing here, so that the new version itself is fitted."""
    state = {name: np.array(-value, value.dtype) for name, value in taught(base()).items()}
    made = carried_here(words(tmp_path, base(), base(0.02), state, epochs=2))
    assert made["how"] == "refitted"
    assert made["after"]["loss"] < made["fresh"]["loss"]


def test_states_that_are_not_finite_are_not_carried(tmp_path: Path) -> None:
    state = taught(base(), 1)
    state["head.bias"][0] = np.nan
    made = carried_here(words(tmp_path, base(), base(0.02), state))
    assert made["how"] == "initial" and not (tmp_path / "into").exists()
    with pytest.raises(lite_runtime.InputError, match="expected finite numbers"):
        carried_here(words(tmp_path, base(), base(0.02), state, examples=""))


def test_an_update_carries_and_a_return_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edge.agent.checking.trying import Trial

    monkeypatch.setattr("edge.agent.application.tried", lambda *_: Trial(1, 1.0, 0, True))
    shelf = Shelf(tmp_path / "shelf")
    shelf.add("1", {FILE: base()})
    np.savez(tmp_path / "kept.npz", **examples())
    settings = QUICK._replace(personal=Personal(examples=str(tmp_path / "kept.npz")))
    with Agent(tmp_path / "device", {APP: settings}, shelf, machine=Here(), every=0.0) as one:
        one.start()
        with pytest.raises(AgentError, match="expected a version that runs"):
            one.personal(APP, FILE)
        settle(one)
        model = lite_runtime.load(one.current(APP, FILE))  # type: ignore[arg-type]
        model.load_state_dict(taught(base()))
        model.save_state(one.personal(APP, FILE))
        first = one.personal(APP, FILE).read_bytes()
        shelf.add("2", {FILE: base(0.02)})
        settle(one)
        kept = one.personal(APP, FILE)
        assert accuracy(base(0.02), checkpoint.read(kept).state) > accuracy(base(0.02)) + 0.3
        said = [event.text for event in one.report().events if event.kind == "personal"]
        assert len(said) == 1 and said[0].startswith(f"{FILE}: carried, before accuracy 0.9")
        one.rollback(APP)
        assert one.personal(APP, FILE).read_bytes() == first
        shelf.add("3", {FILE: base(0.0, 5)})
        settle(one)
        assert not one.personal(APP, FILE).exists()
        one.rollback(APP)
        assert one.personal(APP, FILE).read_bytes() == first


def test_states_of_old_versions_are_bounded(tmp_path: Path) -> None:
    kept = Kept(tmp_path, keep=3)
    versions = [Installed("a", str(number), f"{number:064x}"[::-1]) for number in range(9)]
    for number, one in enumerate(versions):
        kept.prepare(one)
        kept.path(one, FILE).write_bytes(b"x")
        os.utime(kept.path(one, FILE).parent, (number, number))
    kept.expire(versions[:1])
    assert [one.version for one in versions if kept.names(one)] == ["0", "7", "8"]


@pytest.mark.slow
def test_an_adapter_of_a_language_model_goes_over(tmp_path: Path) -> None:
    from edge.agent.personal.language import carried_adapter
    from lite_runtime.learning.texts import Learning
    from tests.language.test_learning import CHAT, learning_bundle, model

    learning = Learning(model(0), length=64)
    list(learning.steps([CHAT], 30))
    learning.adapter().save(tmp_path / "state")
    for name, seed in (("old", 0), ("new", 1)):
        (tmp_path / name).write_bytes(learning_bundle(seed))
    (tmp_path / "kept.jsonl").write_text(json.dumps({"messages": CHAT}))
    given: dict[str, Any] = {name: str(tmp_path / name) for name in ("old", "new", "state", "into")}
    made = carried_adapter({**given, "names": [], "examples": str(tmp_path / "kept.jsonl"), "epochs": 30})
    assert made["how"] == "refitted"
    assert made["after"]["loss"] < made["fresh"]["loss"] / 10 and made["before"]["loss"] < 0.5
    assert checkpoint.read(tmp_path / "into").model == bundle.read(learning_bundle(1)).digest
