"""`msedge serve` and `msedge token` as processes: settings, errors, the first answer, the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import msedge
from edge.cli.app import app
from tests.edge.gateway.live import scaled

RUN = CliRunner()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scaled(tmp_path_factory.mktemp("serve") / "twice.mslite", 2.0)


def test_settings_are_shown_with_their_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MSEDGE_SERVE_BATCHING_ROWS", "16")
    file = tmp_path / "serve.toml"
    file.write_text('[serve]\nhost = "127.0.0.2"\n[serve.limits]\nbody = "1MiB"\n')
    done = RUN.invoke(app, ["serve", "--config", str(file), "--port", "81", "--limits-reply", "2MiB", "--print-config"])
    assert done.exit_code == 0, done.output
    found = tomllib.loads(done.stdout)["serve"]
    assert (found["host"], found["port"], found["batching"]["rows"]) == ("127.0.0.2", 81, 16)
    assert "MSEDGE_SERVE_BATCHING_ROWS" in done.stdout and "flag --port" in done.stdout and "serve.toml" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "expected a bundle"),
        (["nowhere.mslite", "--port", "0"], 3, "nowhere.mslite"),
        ([__file__, "--port", "0"], 3, "test_cli_serve"),
        (["m.mslite", "--batching-rowz", "3"], 2, "did you mean --batching-rows?"),
        (["m.mslite", "--nonsense", "3"], 2, "--print-config shows"),
        (["m.mslite", "--workers", "2"], 2, "No such option: --workers"),
        (["m.mslite", "--personal-store", "/nowhere.sqlite"], 3, "[sync] store"),
        (["m.mslite", "--batching-rows"], 2, "expected a value"),
        (["m.mslite", "--batching-rows", "many"], 3, "batching.rows"),
        (["m.mslite", "--port", "99999"], 3, "a port"),
        (["m.mslite", "--config", "/nowhere.toml"], 3, "/nowhere.toml"),
        (["m.mslite", "--access-management", "token"], 3, "msedge token add"),
        (["m.mslite", "--host", "999.1.1.1"], 3, "cannot listen"),
    ],
)
def test_wrong_usage_is_reported(words: list[str], code: int, text: str) -> None:
    done = RUN.invoke(app, ["serve", *words])
    assert done.exit_code == code, done.output
    assert text in done.output and "Traceback" not in done.output


def test_from_the_first_answer_to_the_end(bundle: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "edge.cli", "serve", str(bundle), "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONWARNINGS": "error"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        told = "".join(iter(lambda: process.stdout.readline() if process.stdout else "", "}\n"))
        address = json.loads(told + "}")["address"]
        with msedge.Client(address) as client:
            assert client.ready("twice")
            x = np.arange(4, dtype=np.float32)[None]
            np.testing.assert_array_equal(client.infer("twice", {"x": x})["y"], 2 * x)
            process.send_signal(signal.SIGHUP)
            np.testing.assert_array_equal(client.infer("twice", {"x": x})["y"], 2 * x)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=300)
        assert process.returncode == 0 and "Traceback" not in errors, errors
    finally:
        process.kill()


def test_a_log_of_objects_has_no_other_lines(bundle: Path) -> None:
    words = [sys.executable, "-m", "edge.cli", "serve", "--port", "0", "--logs-format", "json", "--host", "0.0.0.0"]
    process = subprocess.Popen([*words, str(bundle)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = []
        while not lines or lines[-1]["event"] != "serving":
            lines.append(json.loads(process.stderr.readline()))
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=300)
        lines += [json.loads(line) for line in rest.splitlines()]
        assert any("everybody who can reach 0.0.0.0 may use the models" in line["event"] for line in lines)
    finally:
        process.kill()
        process.communicate()
    done = subprocess.run([*words, "none.mslite"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3
    assert "none" in [json.loads(line) for line in done.stderr.splitlines()][-1]["reason"]


def test_tokens_are_made_shown_and_taken_away(tmp_path: Path) -> None:
    file = str(tmp_path / "tokens.json")
    made = RUN.invoke(app, ["token", "add", "camera", "--scope", "infer", "--tokens", file, "--days", "3", "--json"])
    assert made.exit_code == 0, made.output
    token = json.loads(made.stdout)["token"]
    assert token not in Path(file).read_text()
    listed = RUN.invoke(app, ["token", "list", "--tokens", file, "--json"])
    (row,) = json.loads(listed.stdout)["tokens"]
    assert row["name"] == "camera" and row["scopes"] == ["infer"]
    assert "camera" in RUN.invoke(app, ["token", "list", "--tokens", file]).stdout
    assert RUN.invoke(app, ["token", "add", "camera", "--scope", "fly", "--tokens", file]).exit_code == 3
    assert RUN.invoke(app, ["token", "revoke", "camera", "--tokens", file]).exit_code == 0
    assert RUN.invoke(app, ["token", "revoke", "camera", "--tokens", file]).exit_code == 3
