"""Examples of deployment: they parse, have the required settings, and agree with the program's settings and each
other."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from edge.gateway.operate.settings import Settings
from edge.gateway.operate.sources import entries, resolve

ROOT = Path(__file__).resolve().parents[4]
DEPLOY = ROOT / "deploy"
OWN = {"MSEDGE_CACHE"}


def documents(name: str) -> dict[str, dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    found = list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))
    assert all({"apiVersion", "kind", "metadata", "data" if one["kind"] == "ConfigMap" else "spec"} <= set(one)
               for one in found)  # fmt: skip
    return {one["kind"]: one for one in found}


def check_variables(names: set[str]) -> None:
    assert names <= {entry.variable for entry in entries().values()} | OWN


def check_flags(arguments: list[str]) -> None:
    flags = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    assert flags <= {entry.flag for entry in entries().values()} | {"--config"}


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's instructions and their arguments, lines joined."""
    lines = [line for line in (DEPLOY / "Dockerfile").read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n", "", "\n".join(lines))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    assert all(len(words) == 2 for words in found)
    return [(words[0], words[1]) for words in found]


def test_the_image() -> None:
    found = instructions()
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
             "ENTRYPOINT", "CMD"}  # fmt: skip
    assert {name for name, _ in found} <= known
    last = max(at for at, (name, _) in enumerate(found) if name == "FROM")
    runs = found[last:]
    (user,) = [words for name, words in runs if name == "USER"]
    assert user.split(":")[0] not in ("0", "root")
    for name in ("ENTRYPOINT", "CMD"):
        (words,) = [words for found_name, words in runs if found_name == name]
        assert all(isinstance(word, str) for word in json.loads(words))
    assert ("STOPSIGNAL", "SIGTERM") in runs
    (check,) = [words for name, words in runs if name == "HEALTHCHECK"]
    assert "/v2/health/ready" in check
    compile(json.loads(check.partition("CMD ")[2])[2], "healthcheck", "exec")
    (environment,) = [dict(word.split("=", 1) for word in words.split()) for name, words in runs if name == "ENV"]
    check_variables({name for name in environment if name.startswith("MSEDGE")})
    resolve({}, {k: v for k, v in environment.items() if k.startswith("MSEDGE")}, folder=Path("/nowhere"))


def test_the_image_holds_the_code() -> None:
    copied = {word for name, words in instructions() if name == "COPY" and "--from" not in words
              for word in words.split()[:-1]}  # fmt: skip
    assert all((ROOT / path).exists() for path in copied)
    sent = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").split() if line[0] == "!"}
    assert {path.removeprefix("./") for path in copied} == sent
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    packages = {name for name in tools["packages"]["find"]["include"] if "*" not in name}
    assert packages | {f"{module}.py" for module in tools["py-modules"]} <= copied


def test_kubernetes() -> None:
    found = documents("kubernetes.yaml")
    assert set(found) == {
        "ConfigMap", "Deployment", "Service", "PodDisruptionBudget", "HorizontalPodAutoscaler",
    }  # fmt: skip
    settings = _configured(found["ConfigMap"])
    template = found["Deployment"]["spec"]["template"]
    labels, pod = template["metadata"]["labels"], template["spec"]
    (container,) = pod["containers"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
    assert pod["terminationGracePeriodSeconds"] > settings.drain + 5
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": settings.port, "grpc": settings.grpc.port}
    assert {port["targetPort"] for port in found["Service"]["spec"]["ports"]} == set(ports)
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["readinessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"]
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"
    assert {"requests", "limits"} == set(container["resources"])
    volumes, mounts = ({entry["name"] for entry in of} for of in (pod["volumes"], container["volumeMounts"]))
    assert volumes == mounts
    check_flags(container["args"])
    check_variables({entry["name"] for entry in container["env"]})
    assert found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["name"] == found["Deployment"]["metadata"]["name"]


def _configured(config: dict[str, Any]) -> Settings:
    """What the map's file says, read as the gateway reads it."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "msedge.toml"
        path.write_text(config["data"]["msedge.toml"], "utf-8")
        return resolve({}, {}, path)


def test_kserve() -> None:
    found = documents("kserve.yaml")
    runtime, service = found["ServingRuntime"]["spec"], found["InferenceService"]["spec"]
    assert runtime["protocolVersions"] == ["v2"]
    (container,) = runtime["containers"]
    assert container["name"] == "kserve-container"
    check_flags(container["args"])
    model = service["predictor"]["model"]
    assert model["runtime"] == found["ServingRuntime"]["metadata"]["name"]
    assert model["protocolVersion"] in runtime["protocolVersions"]
    assert model["modelFormat"]["name"] in [format["name"] for format in runtime["supportedModelFormats"]]
    port = container["ports"][0]["containerPort"]
    assert f"--port={port}" in container["args"]
    assert runtime["annotations"]["prometheus.kserve.io/port"] == str(port)


def unit() -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / "msedge.service", "utf-8")
    return parser


def test_the_unit_has_the_required_settings() -> None:
    service = unit()["Service"]
    assert service["User"] not in ("", "root")
    assert float(service["TimeoutStopSec"]) > Settings().drain
    for name in ("NoNewPrivileges", "MemoryDenyWriteExecute", "PrivateTmp", "ProtectHome", "LockPersonality"):
        assert service[name] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""
    variables = {word.split("=")[0] for word in service["Environment"].split()}
    check_variables({name for name in variables if name.startswith("MSEDGE")})
    check_flags(service["ExecStart"].split())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "msedge.service").read_text("utf-8")
    path = tmp_path / "msedge.service"
    path.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE), "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=300, check=False
    )
    if "Failed to" in done.stderr and "msedge.service" not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")
