"""Checkpoints of a server: written before results leave it, and never over another run's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from federated.config import Config
from federated.errors import FederatedError
from federated.privacy.accountant import Accountant
from federated.run import Fleet, serve, simulate
from federated.server import conduct
from federated.server.federation import Federation, Start
from tests.federated.fleets import BUNDLE, config, fleet
from tests.federated.server.test_checkpoint import leaves, rows_of, same

MODES: dict[str, dict[str, Any]] = {"sync": {"rounds": {"count": 3}}, "async": {
    "rounds": {"count": 3, "mode": "async"}, "async_": {"concurrency": 2, "size": 2}}}  # fmt: skip


def words(folder: Path, mode: str) -> Config:
    return config(**MODES[mode], evaluation={"every": 1}, state={"checkpoint": str(folder / "run")})


class Killed(Exception):
    """Simulates the end of the process."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("at", [2, 3])
def test_a_round_is_kept_before_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, at: int
) -> None:
    """Killed in an evaluation, in the last round's too: it is made up for, and nothing else is done twice."""
    evaluate, killed, whole = conduct.evaluate, tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()

    def dies(federation: Federation, *more: Any) -> dict[str, Any]:
        if federation.round == at:
            raise Killed
        return evaluate(federation, *more)

    with monkeypatch.context() as patched:
        patched.setattr(conduct, "evaluate", dies)
        with pytest.raises(Killed):
            simulate(words(killed, mode), fleet(3))
    assert ["evaluation" in row for row in rows_of(killed / "run")] == [True] * (at - 1) + [False]
    seen: list[int] = []
    simulate(words(killed, mode), fleet(3), resume=True, watch=lambda row: seen.append(row["round"]))
    assert seen == list(range(at, 4))
    ended = rows_of(killed / "run")
    assert [row["round"] for row in ended] == [1, 2, 3] and all("evaluation" in row for row in ended)
    if mode == "sync":
        simulate(words(whole, mode), fleet(3))
        assert same(leaves(killed / "run"), leaves(whole / "run"))
        for mine, theirs in zip(ended, rows_of(whole / "run"), strict=True):
            assert mine | {"seconds": 0} == theirs | {"seconds": 0}


def test_attempts_count_anew_when_a_run_goes_on(tmp_path: Path) -> None:
    words = config(state={"checkpoint": str(tmp_path / "run")}, rounds={"count": 1, "deadline": 5.0, "attempts": 2})
    with pytest.raises(FederatedError, match="2 times in a row"):
        simulate(words, fleet(3), delay=lambda name, nth: float("inf") if nth else 0.0)
    # Again no device answers the first time: the third attempt in total.
    ended = simulate(words, fleet(3), resume=True, delay=lambda name, nth: float("inf") if nth == 0 else 0.0)
    assert [row["counted"] for row in ended.rows][:2] == [False, False] and ended.rows[-1]["counted"]


def test_a_run_that_gives_up_quotes_what_went_wrong() -> None:
    made = fleet(3)
    nan = np.float32(np.nan)
    nans = {name: data._replace(inputs={"x": data.inputs["x"] * nan}) for name, data in made.shards.items()}
    for mode in MODES:
        with pytest.raises(FederatedError, match=r"; device-0\d: \w+: .*finite"):
            simulate(config(**MODES[mode]), Fleet(made.learner, made.start, nans))


def test_an_earlier_runs_checkpoint_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = fleet(2)
    monkeypatch.setattr("federated.run.opened", lambda config: (made.learner, made.start))
    file, keep = tmp_path / "run.toml", tmp_path / "kept"
    file.write_text(
        '[model]\nbundle = "none.mslite"\n[algorithm]\nname = "fedavg"\n[rounds]\ncount = 1\nminimum = 1\n'
        f'[state]\ncheckpoint = "{keep}"\n'
    )
    keep.write_bytes(b"another run's")
    with pytest.raises(FederatedError, match=r"state\.checkpoint: .* continue that run with --resume, or move the"):
        serve(None, {"config": str(file), "resume": False})  # type: ignore[arg-type]  # nothing is sent
    assert keep.read_bytes() == b"another run's"


@pytest.mark.parametrize("noise", ["central", "local"])
def test_noise_on_running_statistics_is_refused(noise: str) -> None:
    params = {name: np.ones(2, np.float32) for name in ("body.w", "bn.scale", "bn.mean", "bn.var")}
    start = Start(params, ("bn.mean", "bn.var"), BUNDLE)
    privacy = {"clip": 1.0, "noise": noise, "multiplier": 1.0}
    with pytest.raises(FederatedError, match=r"'bn\.mean'.*batch_norm=\"frozen\".*fedbn"):
        Federation.begin(config(privacy=privacy), start)
    stay = config(privacy=privacy, algorithm={"name": "fedbn"})
    assert Federation.begin(stay, start).account == Accountant()
    assert Federation.begin(config(privacy={"clip": 1.0}), start).round == 0
    assert Federation.begin(config(privacy=privacy), Start(params, (), BUNDLE)).round == 0
