"""Manifests for Kubernetes: valid by the published schemas, and their variables start a job of two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cloud.errors import TrainError
from cloud.train.jobs.config import read
from cloud.train.jobs.job import job_of
from cloud.train.many.manifest import INDEX, KINDS, Wanted, manifest, yaml_text
from cloud.train.many.processes import VARIABLES, free_port
from edge.cli.app import app
from tests.waiting import PATIENCE

RUN = """# "quoted" and indented
[model]
zoo = "mlp"
options = { features = 4, outputs = 3, hidden = [8] }
[data]
npz = "d.npz"

[train]
epochs = 1
batch = 16
[parallel]
mode = "data"
[checkpoint]
folder = "kept"
[export]
onnx = "m.onnx"
"""
ROOT = Path(__file__).parents[3]
WANTED = Wanted("digits", "registry.example/team/msedge:1", "work", nodes=2, gpus=4, memory="64Gi", cpus="8",
                labels={"example.com/spot": "true"}, changes=("train.rate=0.01",))  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    np.savez(folder / "d.npz", x=x, labels=x[:, :3].argmax(1))
    (folder / "run.toml").write_text(RUN)
    return folder / "run.toml"


def objects(run: Path, kind: str, **changes: Any) -> list[dict[str, Any]]:
    return manifest(RUN, read(run), Wanted(**{**vars(WANTED), **changes}), kind)


def jobset_spec(found: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = found[1]["spec"]
    return spec["template"]["spec"] if found[1]["kind"] == "TrainingRuntime" else spec


@pytest.mark.parametrize("kind", KINDS)
def test_valid_by_the_published_schemas(run: Path, kind: str) -> None:
    core = pytest.importorskip("kubernetes_validate")
    jsonschema = pytest.importorskip("jsonschema")
    schemas = json.loads((Path(__file__).parent / "kubernetes_schemas.json").read_text())
    for options in ({}, {"nodes": 1, "gpus": 0, "cpus": "", "memory": "", "labels": {}}):
        found = objects(run, kind, **options)
        core.validate(found[0], "1.33", strict=True)
        for each in found[1:]:
            jsonschema.Draft202012Validator(schemas[each["kind"]]).validate(each["spec"])
        spec = jobset_spec(found)
        jsonschema.Draft202012Validator(schemas["JobSet"]).validate(spec)
        job = {"apiVersion": "batch/v1", "kind": "Job", **spec["replicatedJobs"][0]["template"]}
        core.validate(job | {"metadata": {"name": "n"}}, "1.33", strict=True)
    wrong = {**spec, "failurePolicy": {"maxRestart": 1}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schemas["JobSet"]).validate(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_says(run: Path, kind: str) -> None:
    found = objects(run, kind)
    assert [each["kind"] for each in found] == {"jobset": ["ConfigMap", "JobSet"]}.get(
        kind, ["ConfigMap", "TrainingRuntime", "TrainJob"]
    )
    assert found[0]["data"] == {"run.toml": RUN}
    job = jobset_spec(found)["replicatedJobs"][0]["template"]["spec"]
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (2, 2, "Indexed")
    pod = job["template"]["spec"]
    one = pod["containers"][0]
    env = {each["name"]: each for each in one["env"]}
    assert env[VARIABLES[0]]["value"] == "digits-node-0-0.digits:8476" and env[VARIABLES[1]]["value"] == "2"
    assert env[VARIABLES[2]]["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
    assert one["resources"]["limits"] == {"nvidia.com/gpu": "4", "memory": "64Gi"}
    assert one["resources"]["requests"] == {"nvidia.com/gpu": "4", "memory": "64Gi", "cpu": "8"}
    assert pod["terminationGracePeriodSeconds"] == 60 and pod["nodeSelector"] == {"example.com/spot": "true"}
    assert pod["tolerations"] == [{"key": "example.com/spot", "operator": "Equal", "value": "true"}]
    alone = jobset_spec(objects(run, kind, nodes=1))["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert not {*VARIABLES} & {each["name"] for each in alone["containers"][0]["env"]}


def test_its_command_trains_in_two_processes_and_goes_on(run: Path) -> None:
    """As two nodes would run it, with the addresses of this machine, from a checkpoint of one."""
    job_of(read(run)).fit()
    spec = jobset_spec(objects(run, "jobset", folder=str(run.parent), changes=("train.epochs=2",)))
    one = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    address = f"127.0.0.1:{free_port()}"
    started = []
    for index in range(2):
        env = {each["name"]: each.get("value", str(index)) for each in one["env"]}
        env |= {VARIABLES[0]: address, "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-m", "edge.cli", *one["command"][1:], "--json"]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    said = [process.communicate(timeout=PATIENCE) for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    first = json.loads(said[0][0])
    assert (first["epochs"], first["steps"]) == (2, 8) and b"continuing from" in said[0][1]
    assert (run.parent / "m.onnx").is_file() and not said[1][0]


def test_as_yaml(run: Path) -> None:
    yaml = pytest.importorskip("yaml")
    for kind in KINDS:
        found = objects(run, kind)
        assert list(yaml.safe_load_all(yaml_text(found))) == found
    odd = [{"a": [], "b": {}, "c": "x: y\n", "d": "no", "e": " a\n b\n", "f": "a\n\n", "g": [[1, {"h": "é\u2028\n"}]]},
           {"k": "a\tb\nc\n", "t": "one\n  two\n\nthree\n", "n": None, "z": [True, {"y": [{"w": "~"}]}]}]  # fmt: skip
    assert list(yaml.safe_load_all(yaml_text(odd))) == odd
    out = CliRunner().invoke(
        app, ["cluster", "manifest", str(run), "--image", "i", "--claim", "c", "--nodes", "2", "--node", "a=b"]
    )  # fmt: skip
    assert out.exit_code == 0, out.stderr
    assert [each["kind"] for each in yaml.safe_load_all(out.stdout)] == ["ConfigMap", "JobSet"]
    out = CliRunner().invoke(app, ["cluster", "manifest", str(run), "--image", "i", "--claim", "c", "--node", "a"])
    assert out.exit_code == 2


def test_what_is_refused(run: Path) -> None:
    for change, options, words in (
        ("parallel.mode=none", {}, 'parallel.mode: expected "data" or "auto" for 2 nodes, got "none"'),
        ("train.batch=12", {}, "train.batch: expected a multiple of 8, the devices, got 12"),
        ("checkpoint.folder=", {}, "checkpoint.folder: expected a folder, from which the run continues"),
        ("checkpoint.folder=/data/kept", {}, "checkpoint.folder: expected a path on the volume, below /work"),
        ("export.onnx=../m.onnx", {}, "export.onnx: expected a path on the volume, below /work"),
        ("train.epochs=2", {"name": "My_Run"}, "name: expected at most 40 of a-z, 0-9 and -"),
        ("train.epochs=2", {"folder": "work"}, "folder: expected an absolute path such as /work, got 'work'"),
    ):
        with pytest.raises(TrainError, match=words):
            manifest(RUN, read(run, [change]), Wanted(**{**vars(WANTED), **options}))
    with pytest.raises(TrainError, match="expected a kind among jobset, trainjob, got 'pod'"):
        objects(run, "pod")
