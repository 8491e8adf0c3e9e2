"""Earlier rounds are kept, and a run that returns to one continues as if the later ones had had no result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.config import Config
from federated.errors import FederatedError
from federated.messages.packed import unpack
from federated.run import go_back, report, rounds_kept, simulate
from federated.server import checkpoint, conduct, history
from federated.server.federation import Federation
from tests.federated.fleets import config, fleet
from tests.federated.server.test_checkpoint import same

START = fleet(4).start
DOWN = {"float32": {}, "difference": {"codec": {"down": ["difference", "topk:0.5", "int8"]}}}


def words(folder: Path, count: int = 6, **sections: Any) -> Config:
    return config(
        rounds={"count": count, "fraction": 0.7, **sections.pop("rounds", {})},
        state={"checkpoint": str(folder / "run"), "devices": str(folder / "devices")},
        evaluation={"every": 2, **sections.pop("evaluation", {})},
        history={"keep": 10, **sections.pop("history", {})},
        **sections,
    )


def numbers(folder: Path, made: Config) -> list[int]:
    return [each["round"] for each in rounds_kept(made, START)]


@pytest.mark.parametrize("down", DOWN)
def test_a_kept_round_is_that_of_a_shorter_run(tmp_path: Path, down: str) -> None:
    simulate(words(tmp_path, **DOWN[down]), fleet(4))
    short = simulate(config(rounds={"count": 3, "fraction": 0.7}, **DOWN[down]), fleet(4))
    back = go_back(words(tmp_path, **DOWN[down]), START, 3)
    assert same(back.state, short.state) and same(back.link.tree, short.link.tree)
    assert back.link.version == 7 and back.learned == 3 and back.round == 6


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "ditto"])
def test_a_return_continues_as_if_the_later_rounds_had_had_no_result(tmp_path: Path, name: str) -> None:
    """The same bits as those of a run in which rounds 4 to 6 were skipped; killed and resumed in between, too."""
    algorithm = {"algorithm": {"name": name}}
    returned, skipped = tmp_path / "returned", tmp_path / "skipped"
    for folder in (returned, skipped):
        folder.mkdir()
    simulate(words(returned, **algorithm), fleet(4))
    go_back(words(returned, **algorithm), START, 3)
    simulate(words(returned, 5, **algorithm), fleet(4), resume=True)
    mine = simulate(words(returned, 6, **algorithm), fleet(4), resume=True)
    simulate(words(skipped, 3, **algorithm), fleet(4))
    other = checkpoint.load(skipped / "run", words(skipped, **algorithm), START)
    for _ in range(3):
        other.skip()
    checkpoint.save(skipped / "run", other)
    theirs = simulate(words(skipped, **algorithm), fleet(4), resume=True)
    assert same(mine.model(), theirs.model())
    assert [row["round"] for row in mine.rows] == [1, 2, 3, 7, 8, 9] and mine.done
    assert [row["counted"] for row in mine.rows] == [True] * 6


def test_devices_that_keep_the_model_follow_a_return(tmp_path: Path) -> None:
    """They are sent one whole version, then differences again, and hold the server's bits."""
    made = words(tmp_path, rounds={"fraction": 1.0}, evaluation={"every": 0}, **DOWN["difference"])
    simulate(made, fleet(4))
    go_back(made, START, 2)
    ended = simulate(made, fleet(4), resume=True)
    assert [row["round"] for row in ended.rows] == [1, 2, 7, 8, 9, 10]
    assert all(row["counted"] and not row["refused"] for row in ended.rows)
    down = [row["bytes_down"] for row in ended.rows]
    assert down[2] > max(down[3:])


def test_no_round_and_no_version_is_used_twice(tmp_path: Path) -> None:
    sent: list[tuple[int, int]] = []
    task = Federation.task

    def noted(self: Federation, kind: str, number: int, *more: Any, **words: Any) -> bytes:
        message = task(self, kind, number, *more, **words)
        if kind == "train":
            meta = unpack(message)[0]
            sent.append((meta["round"], meta["model"]))
        return message

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Federation, "task", noted)
        simulate(words(tmp_path), fleet(4))
        for to in (2, 7, 4):  # the last is a round of the branch that was given up first
            go_back(words(tmp_path), START, to)
            ended = simulate(words(tmp_path), fleet(4), resume=True)
    assert len({number for number, _ in sent}) == len(sent) == len({model for _, model in sent})
    assert [number for number, _ in sent] == list(range(1, len(sent) + 1))
    assert [each["to"] for each in ended.returns] == [2, 7, 4]
    made = report(ended)
    assert [row["round"] for row in made["rows"]] == [1, 2, 3, 4, 14, 15]
    everything = sorted(row["round"] for row in [*made["rows"], *made["given_up"]])
    assert everything == list(range(1, len(sent) + 1)), "every round is in the report once"
    assert made["bytes_up"] == sum(row["bytes_up"] for row in [*made["rows"], *made["given_up"]])


def test_what_was_spent_stays_spent(tmp_path: Path) -> None:
    privacy = {"clip": 0.5, "noise": "central", "multiplier": 1.0, "evaluation": "open"}
    ended = simulate(words(tmp_path, privacy=privacy), fleet(4))
    back = go_back(words(tmp_path, privacy=privacy), START, 2)
    assert back.account == ended.account and back.members == ended.members
    ended = simulate(words(tmp_path, privacy=privacy), fleet(4), resume=True)
    assert ended.account.spent[0].rounds == 10


@pytest.mark.parametrize("model", ["malicious", "honest-but-curious"])
def test_devices_take_part_in_the_secure_sums_of_a_return(tmp_path: Path, model: str) -> None:
    """Their ledgers have no sum of these rounds yet. With the numbers of the rounds that were given up they decline."""
    secure = {"privacy": {"clip": 1.0, "secure": True, "model": model}, "rounds": {"fraction": 1.0}}
    made = words(tmp_path, 3, **secure)
    simulate(made, fleet(4))
    back = go_back(made, START, 1)
    ended = simulate(made, fleet(4), resume=True)
    assert [row["round"] for row in ended.rows] == [1, 4, 5] and ended.learned == 3
    assert all(row["answered"] == 4 and not row["refused"] for row in ended.rows)
    back.round, back.skipped = 1, 0
    checkpoint.save(tmp_path / "run", back)
    with pytest.raises(FederatedError, match="a second sum with other devices could reveal an update"):
        simulate(made, fleet(4), resume=True)


def test_a_budget_pays_for_rounds_that_were_given_up(tmp_path: Path) -> None:
    privacy = {"clip": 0.5, "noise": "central", "epsilon": 20.0, "delta": 0.01, "evaluation": "open"}
    first = simulate(words(tmp_path, privacy=privacy), fleet(4))
    back = go_back(words(tmp_path, privacy=privacy), START, 3)
    assert back.done, "no budget is left: the run ends with the model of round 3"
    ended = simulate(words(tmp_path, privacy=privacy), fleet(4), resume=True)
    assert ended.account == first.account and same(ended.state, back.state)
    assert report(ended)["epsilon"] == first.rows[-1]["epsilon"] > ended.rows[-1]["epsilon"]
    assert "evaluation" in ended.rows[-1] and ended.rows[-1]["round"] == 3, "round 3 had none"


def test_a_budget_that_is_used_up_pays_for_no_evaluation(tmp_path: Path) -> None:
    privacy = {"clip": 0.5, "noise": "central", "epsilon": 20.0, "delta": 0.01}
    first = simulate(words(tmp_path, privacy=privacy), fleet(4))
    go_back(words(tmp_path, privacy=privacy), START, 3)
    ended = simulate(words(tmp_path, privacy=privacy), fleet(4), resume=True)
    assert ended.account == first.account and "evaluation" not in ended.rows[-1]
    assert (report(ended)["epsilon"] or 0) <= 20.0


def test_a_run_may_end_with_an_earlier_model(tmp_path: Path) -> None:
    """The gate judges the evaluation of the model that is exported, not that of one that was given up."""
    gate = {"against": "start", "margin": 1.0}
    simulate(words(tmp_path, gate=gate), fleet(4))
    go_back(words(tmp_path, gate=gate), START, 3)
    ended = simulate(words(tmp_path, 3, gate=gate), fleet(4), resume=True)
    assert [row["round"] for row in ended.rows] == [1, 2, 3] and "evaluation" in ended.rows[-1]
    kept = {each["round"]: each for each in rounds_kept(words(tmp_path, 3, gate=gate), START)}
    assert kept[3]["evaluation"] == ended.rows[-1]["evaluation"] and not kept[6]["current"]


def test_rates_fall_with_the_rounds_that_were_learned_from(tmp_path: Path) -> None:
    schedule = {"schedule": {"local": "step", "every": 2, "factor": 0.5}}
    simulate(words(tmp_path, **schedule), fleet(4))
    back = go_back(words(tmp_path, **schedule), START, 2)
    assert back.scheduled(back.round + 1).rate == pytest.approx(0.1)


def test_the_newest_rounds_are_kept(tmp_path: Path) -> None:
    made = words(tmp_path, 7, history={"keep": 2, "every": 2})
    simulate(made, fleet(4))
    assert numbers(tmp_path, made) == [6, 7], "every second round, and the last"
    assert len(list((tmp_path / "run.history").iterdir())) == 2
    off = words(tmp_path, 7, history={"keep": 0})
    simulate(off, fleet(4))
    assert numbers(tmp_path, off) == [], "the files are those of another run"


def test_a_round_that_the_checkpoint_does_not_have_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was killed after it kept the round and before its checkpoint: the account lacks that round."""

    class Killed(Exception):
        pass

    save = checkpoint.save

    def dies(path: Any, federation: Federation) -> None:
        if federation.round == 3:
            raise Killed
        save(path, federation)

    monkeypatch.setattr(conduct.checkpoint, "save", dies)
    with pytest.raises(Killed):
        simulate(words(tmp_path), fleet(4))
    monkeypatch.undo()
    assert len(list((tmp_path / "run.history").iterdir())) == 3 and numbers(tmp_path, words(tmp_path)) == [1, 2]
    simulate(words(tmp_path), fleet(4), resume=True)
    assert len(list((tmp_path / "run.history").iterdir())) == 6 and numbers(tmp_path, words(tmp_path))[2] == 3


def test_asynchronous_steps_are_kept_too(tmp_path: Path) -> None:
    made = words(tmp_path, rounds={"mode": "async", "fraction": 1.0}, async_={"concurrency": 2, "size": 2})
    simulate(made, fleet(4))
    back = go_back(made, START, 2)
    ended = simulate(made, fleet(4), resume=True)
    assert [row["round"] for row in ended.rows] == [1, 2, 7, 8, 9, 10] and back.learned == 2


def test_what_is_refused(tmp_path: Path) -> None:
    made = words(tmp_path)
    simulate(made, fleet(4))
    with pytest.raises(FederatedError, match=r"a round that is kept, got 9; kept: 1, 2, 3, 4, 5, 6$"):
        go_back(made, START, 9)
    with pytest.raises(FederatedError, match="whose model is the current one"):
        go_back(made, START, 6)
    [path] = [each.path for each in history.listed(tmp_path / "run", checkpoint.load(tmp_path / "run", made, START))
              if each.round == 2]  # fmt: skip
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    before = (tmp_path / "run").read_bytes()
    with pytest.raises(FederatedError, match="it is damaged: return to another round"):
        go_back(made, START, 2)
    path.write_bytes(data)
    path.rename(path.with_name(path.name.replace("-00000002-", "-00000001-")))
    for other in history.folder_of(tmp_path / "run").glob("*-00000001-*"):
        if other.read_bytes() != data:
            other.unlink()
    with pytest.raises(FederatedError, match="its round is not this run's"):
        go_back(made, START, 1)
    assert (tmp_path / "run").read_bytes() == before
    for sections, why in (
        ({"history": {"keep": 1}}, "state.checkpoint"),
        ({"history": {"every": 2}}, r"history\.every: has no effect without history\.keep"),
    ):
        with pytest.raises(FederatedError, match=why):
            config(**sections)
    with pytest.raises(FederatedError, match="scaffold with history: devices keep only their newest controls"):
        words(tmp_path, algorithm={"name": "scaffold"})


def test_a_model_has_the_bits_of_its_round(tmp_path: Path) -> None:
    """Returned to and ended there, the run exports what a run of so many rounds exports."""
    simulate(words(tmp_path), fleet(4))
    go_back(words(tmp_path), START, 4)
    ended = simulate(words(tmp_path, 4), fleet(4), resume=True)
    short = simulate(config(rounds={"count": 4, "fraction": 0.7}), fleet(4))
    assert all(np.array_equal(value, short.model()[name]) for name, value in ended.model().items())
