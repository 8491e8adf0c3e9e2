"""`msedge federate` as scripts and users run it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from edge.cli.app import app
from tests.federated import conftest  # noqa: F401 - Flower's first import
from tests.federated.fleets import fleet

CONFIG = """
[model]
bundle = "model.mslite"
[data]
shards = "devices.npz"
[algorithm]
name = "fedavg"
rate = 0.2
[rounds]
count = 3
[evaluation]
every = 3
held_out = 0.3
[state]
checkpoint = "run.state"
[report]
bundle = "learned.mslite"
"""


def msedge(*arguments: str | Path, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(app, ["federate", *(str(a) for a in arguments)], prog_name="msedge")
    assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr, done.exception)
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from cloud.zoo import mlp
    from converter import convert

    path = tmp_path_factory.mktemp("bundle") / "model.mslite"
    convert(mlp(6, 3), output=path, trainable="*")
    return path.read_bytes()


@pytest.fixture
def config(bundle: bytes, tmp_path: Path) -> Path:
    (tmp_path / "model.mslite").write_bytes(bundle)
    made = fleet(6)
    np.savez(
        tmp_path / "devices.npz",
        x=np.concatenate([data.inputs["x"] for data in made.shards.values()]),
        labels=np.concatenate([data.labels for data in made.shards.values()]),
        device=np.repeat(list(made.shards), 40),
    )
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return path


def test_a_simulation_prints_a_table(config: Path) -> None:
    stdout, stderr = msedge(config, "--simulate", "0")
    assert "accuracy after round 3" in stdout and "held out" in stdout and "refused: nothing" in stdout
    assert "round 1/3" in stderr and "loss" in stderr


def test_json_is_one_object_and_pages_are_written(config: Path) -> None:
    page = config.parent / "run.html"
    stdout, _ = msedge(config, "--simulate", "5", "--json", "--report", page)
    made: dict[str, Any] = json.loads(stdout)
    assert made["rounds"] == 3 and made["devices"] == 5 and len(made["rows"]) == 3
    assert page.read_text().startswith("<!doctype html>")


def test_aggregators_in_this_process(config: Path) -> None:
    config.write_text(CONFIG.replace('held_out = 0.3\n', 'held_out = 0.3\n[hierarchy]\naggregators = [2]\n'))
    made: dict[str, Any] = json.loads(msedge(config, "--simulate", "0", "--json")[0])
    assert (made["devices"], made["aggregators"]) == (6, 2)
    assert set(made["rows"][0]["aggregators"]) == {"aggregator-000", "aggregator-001"}


def test_a_run_goes_on_and_leaves_a_bundle(config: Path) -> None:
    import lite_runtime

    msedge(config, "--simulate", "0")
    config.write_text(CONFIG.replace("count = 3", "count = 5"))
    stdout, _ = msedge(config, "--simulate", "0", "--resume", "--json")
    assert [row["round"] for row in json.loads(stdout)["rows"]] == [1, 2, 3, 4, 5]
    old, new = (lite_runtime.load(config.parent / name) for name in ("model.mslite", "learned.mslite"))
    assert new.bundle.provenance["parent"] == old.bundle.digest
    x = np.ones((1, 6), np.float32)
    before, after = (next(iter(model.run({"x": x}).values())) for model in (old, new))
    assert not np.allclose(before, after)


def test_a_run_returns_to_an_earlier_round(config: Path) -> None:
    config.write_text(CONFIG + "[history]\nkeep = 3\n")
    msedge(config, "--simulate", "0")
    stdout, _ = msedge(config, "--history")
    assert "3 *" in stdout and "held out" in stdout
    rounds = json.loads(msedge(config, "--history", "--json")[0])["rounds"]
    assert [(each["round"], each["current"], each["evaluation"] is None) for each in rounds] == [
        (1, True, True), (2, True, True), (3, True, False)]  # fmt: skip
    _, stderr = msedge(config, "--return-to", "7", code=3)
    assert "expected a round that is kept, got 7; kept: 1, 2, 3" in " ".join(stderr.split())
    stdout, _ = msedge(config, "--return-to", "1")
    assert "round 1: 1 of 3 rounds are learned; --resume continues from it" in stdout
    assert [each["current"] for each in json.loads(msedge(config, "--history", "--json")[0])["rounds"]] == [
        True, False, False]  # fmt: skip
    stdout, _ = msedge(config, "--simulate", "0", "--resume")
    assert "returned: after round 3 to the model of round 1" in stdout
    made = json.loads(msedge(config, "--return-to", "4", "--json")[0])
    assert made == {"after": 5, "to": 4, "learned": 2, "rounds": 3}


def test_init_prints_a_configuration() -> None:
    stdout, _ = msedge("--init")
    assert "[model]" in stdout and "[rounds]" in stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("run.toml", "--simulate", "0", "--certificates", "ca.crt"), 2, "only used with --superlink"),
        (("--init", "--resume"), 2, "--init"),
        (("run.toml", "--return-to", "1", "--simulate", "0"), 2, "not used with --return-to"),
        (("run.toml", "--history", "--resume"), 2, "not used with --history"),
        (("--history",), 2, "CONFIG.toml"),
        (("run.toml", "--simulate", "0", "--aggregator", "a.sock"), 2, "only used with --superlink"),
        (("run.toml", "--superlink", "a:1", "--aggregator", "a.sock", "--resume"), 2, "nothing to resume"),
        (("--render", "run.json", "--report", "run.html", "--simulate", "2"), 2, "not used with --render"),
        ((), 2, "--init"),
        (("run.toml",), 2, "--simulate N and --superlink"),
        (("run.toml", "--simulate", "1", "--superlink", "a:1"), 2, "exactly one of"),
        (("none.toml", "--simulate", "0"), 3, "cannot read"),
        (("run.toml", "--simulate", "99"), 3, "at most the 6 devices"),
    ],
)
def test_wrong_usage(config: Path, arguments: tuple[str, ...], code: int, says: str) -> None:
    words = [config.parent / word if word.endswith(".toml") else word for word in arguments]
    assert says in msedge(*words, code=code)[1]


FLWR = """#!/bin/sh
if [ "$1" = list ]; then
    echo "$@" >> "$OUT"
    echo 'Displaying'; echo '{"runs": [{"status": "'"$STATUS"'", "status-details": "round 1:  nobody answered"}]}'
    exit 0
fi
echo "$@" > "$OUT"
cat "$FLWR_HOME/config.toml" >> "$OUT"
ls "$2" >> "$OUT"
echo "telemetry $FLWR_TELEMETRY_ENABLED" >> "$OUT"
echo "Successfully started run 17"
echo "a line of the log"
exit ${CODE:-0}
"""


@pytest.fixture
def flwr(config: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of Flower's; returns the file where it writes what it was asked."""
    from federated.transport import submit

    program = config.parent / "bin" / "flwr"
    program.parent.mkdir()
    program.write_text(FLWR)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(submit.sys, "executable", str(program.parent / "python"))
    monkeypatch.setenv("OUT", str(config.parent / "out"))
    monkeypatch.setenv("STATUS", "finished:completed")
    return config.parent / "out"


def test_a_superlink_is_given_the_app(config: Path, flwr: Path) -> None:
    stdout, stderr = msedge(config, "--superlink", "127.0.0.1:1", "--resume")
    assert "--certificates" in stderr and "a line of the log" in stdout
    out = flwr.read_text()
    assert f"config='{config}' resume=true" in out and "insecure = true" in out and "pyproject.toml" in out
    assert 'address = "127.0.0.1:1"' in out and "--run-id 17" in out
    msedge(config, "--superlink", "127.0.0.1:1", "--aggregator", config.parent / "north.sock")
    assert f"aggregator='{config.parent / 'north.sock'}'" in flwr.read_text()


def test_a_command_of_flower_that_fails_is_an_error(config: Path, flwr: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE", "4")
    assert "error: flwr run: expected exit code 0, got 4" in msedge(config, "--superlink", "127.0.0.1:1", code=3)[1]


def test_a_run_that_fails_on_the_superlink_is_an_error(
    config: Path, flwr: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's command succeeds when it has shown the log of a failed run."""
    monkeypatch.setenv("STATUS", "finished:failed")
    stdout, stderr = msedge(config, "--superlink", "127.0.0.1:1", "--json", code=3)
    lines = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert len(lines) == 1 and "run 17 ended as finished:failed" in lines[0] and "nobody answered" in lines[0]
    assert "nobody answered" in json.loads(stdout)["error"]["message"]


def test_the_example_is_the_app_that_is_sent() -> None:
    from federated.transport.submit import APP

    folder = Path(__file__).parents[2] / "examples" / "federated" / "app"
    found = {os.fspath(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert {name: text for name, text in found.items() if not name.endswith(".pyc")} == dict(APP)


def test_a_report_becomes_a_page(config: Path, tmp_path: Path) -> None:
    text = config.read_text()
    config.write_text(text.replace("[report]", '[report]\njson = "run.json"'))
    msedge(config, "--simulate", 0)
    msedge("--render", tmp_path / "run.json", "--report", tmp_path / "run.html")
    assert "Results per device" in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize(("content", "says"), [("{", "expected the report"), ("[]", "expected the report")])
def test_files_that_are_not_reports_are_refused(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "run.json").write_text(content)
    _, stderr = msedge("--render", tmp_path / "run.json", "--report", tmp_path / "run.html", code=3)
    assert says in " ".join(stderr.split())
    assert not (tmp_path / "run.html").exists()
    _, stderr = msedge("--render", tmp_path / "run.json", code=2)
    assert "--report" in stderr


def test_a_run_on_a_screen(config: Path) -> None:
    from io import StringIO

    from rich.console import Console

    from edge.cli import fleet_live

    rows: list[dict[str, Any]] = json.loads(msedge(config, "--simulate", 0, "--json")[0])["rows"]
    screen = Console(file=StringIO(), width=140, force_terminal=False)
    screen.print(fleet_live._screen(rows, 3))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "3/3" in shown and "held out" in shown and "accuracy after adapting" in shown
    assert any(block in shown for block in fleet_live.BLOCKS)


def test_sparklines() -> None:
    from edge.cli.fleet_live import sparkline

    assert sparkline([0.0, None, 7.0]) == "▁ █"
    assert sparkline([1.0, 1.0]) == "▁▁"
    assert sparkline([]) == sparkline([None]).strip() == ""


def test_flower_sends_no_telemetry_and_its_log_is_not_json(config: Path, flwr: Path) -> None:
    stdout, stderr = msedge(config, "--superlink", "127.0.0.1:1", "--json")
    assert json.loads(stdout)["exit_code"] == 0
    assert "a line of the log" in stderr
    assert "telemetry 0" in flwr.read_text()


def test_a_gate_keeps_a_worse_model_from_being_written(config: Path, tmp_path: Path) -> None:
    gate = '[gate]\nagainst = "start"\nfigure = "loss_before"\n[state]'
    text = CONFIG.replace("rate = 0.2", "rate = 1e3").replace("[state]", gate)
    config.write_text(text + 'json = "run.json"\n')
    _, stderr = msedge(config, "--simulate", 0, code=3)
    errors = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1 and "gate: " in errors[0]
    assert not (tmp_path / "learned.mslite").exists() and (tmp_path / "run.state").exists()
    assert json.loads((tmp_path / "run.json").read_text())["gate"]
    config.write_text(text.replace('against = "start"', 'against = "none"'))
    msedge(config, "--simulate", 0, "--resume")
    assert (tmp_path / "learned.mslite").exists()


def test_a_terminal_shows_what_was_lost_and_what_diverged(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edge.cli.federate import _print
    from edge.cli.fleet_live import _troubles

    made: dict[str, Any] = json.loads(msedge(config, "--simulate", 0, "--json")[0])
    survey = made["rows"][-1]["evaluation"]["training"]
    survey |= {"diverged": ["device-01"], "lost": {"failed": 2}}
    assert list(_troubles(made["rows"][-1])) == ["1 training diverged", "training lost 2 failed"]
    capsys.readouterr()
    _print(made | {"lost_evaluations": {"failed": 2}, "diverged_evaluations": 1})
    shown = capsys.readouterr().out
    assert "lost evaluations: 2 failed" in shown and "evaluations that diverged: 1" in shown


def test_a_run_that_gives_up_writes_its_report(config: Path, tmp_path: Path) -> None:
    text = config.read_text().replace("[report]", '[report]\njson = "run.json"')
    config.write_text(text.replace("[state]", "[limits]\nnorm = 1e-9\n[state]"))
    _, stderr = msedge(config, "--simulate", 0, code=3)
    assert "norm" in stderr
    found = json.loads((tmp_path / "run.json").read_text())
    assert found["refused"]["norm"] > 0 and not any(row["counted"] for row in found["rows"])
    assert not (tmp_path / "learned.mslite").exists()
    msedge("--render", tmp_path / "run.json", "--report", tmp_path / "run.html")
    assert "too few answers" in (tmp_path / "run.html").read_text()


QUESTIONS = """
[data]
shards = "devices.npz"
[[analytics]]
kind = "mean"
feature = "x"
low = -5
high = 5
[[analytics]]
kind = "quantiles"
name = "spread"
feature = "x"
column = 1
low = -5
high = 5
at = [0.5]
[[analytics]]
kind = "histogram"
feature = "labels"
low = 0
high = 3
bins = 3
[[analytics]]
kind = "heavy_hitters"
feature = "labels"
[report]
json = "out.json"
"""
TREES = """
[data]
shards = "devices.npz"
[trees]
objective = "multi:softprob"
classes = 3
features = 6
n_estimators = 3
max_depth = 2
[report]
model = "trees.json"
"""


def test_statistics_and_trees_need_no_bundle(config: Path) -> None:
    folder = config.parent
    (folder / "model.mslite").unlink()
    (folder / "questions.toml").write_text(QUESTIONS)
    (folder / "trees.toml").write_text(TREES)
    shown, said = msedge(folder / "questions.toml", "--simulate", "0")
    assert "analytics: 6 devices" in said
    parts = ("x: mean ", "spread: quantiles", "  0.5: ", "labels: each ± 0\n  from 0: ", "words from 1", "5 questions")
    assert [part for part in parts if part not in shown] == []
    made = json.loads(msedge(folder / "questions.toml", "--simulate", "4", "--json")[0])
    assert made["devices"] == 4 and made["results"] == json.loads((folder / "out.json").read_text())["results"]
    shown, _ = msedge(folder / "trees.toml", "--simulate", "0")
    assert "multi:softprob: 3 rounds, " in shown
    assert json.loads((folder / "trees.json").read_text())["learner"]["objective"]["name"] == "multi:softprob"


def test_what_has_no_effect_on_statistics_is_refused(config: Path) -> None:
    for name, text in (("questions.toml", QUESTIONS), ("trees.toml", TREES)):
        path = config.with_name(name)
        path.write_text(text)
        refused: list[list[str | Path]] = [["--resume"]] if "analytics" in text else []
        for option in [*refused, ["--report", config.with_name("out.html")]]:
            assert "not used for a run of" in " ".join(msedge(path, "--simulate", "0", *option, code=2)[1].split())
    config.with_name("trees.toml").write_text(TREES.replace('model = "trees.json"', 'json = "out.json"'))
    assert "report.model: expected the file" in msedge(config.with_name("trees.toml"), "--simulate", "0", code=3)[1]
