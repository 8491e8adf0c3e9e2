"""Examples of deployment: they parse, have the required settings, and agree with the program's settings and each
other."""

from __future__ import annotations

import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import types
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


@pytest.mark.parametrize("version", ["1.29", "latest"])
def test_kubernetes_published_schemas(version: str) -> None:
    """Every object, with no key that its schema does not know."""
    validator = pytest.importorskip("kubernetes_validate")
    wanted = validator.latest_version() if version == "latest" else version
    for one in documents("kubernetes.yaml").values():
        validator.validate(one, wanted, strict=True)
        with pytest.raises(validator.ValidationError):
            validator.validate({**one, "metadata": {**one["metadata"], "lables": {}}}, wanted, strict=True)


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


class Published:
    """KServe's own models of its objects, out of its wheel: the names and types of their fields. Types of Kubernetes
    are checked by the published schema of a Pod."""

    def __init__(self, wheel: str, patch: pytest.MonkeyPatch) -> None:
        for name in ("kserve", "kserve.models"):  # without the packages that its own __init__ imports
            module = types.ModuleType(name)
            module.__path__ = [f"{wheel}/{name.replace('.', '/')}"]
            patch.setitem(sys.modules, name, module)

    def check(self, value: Any, kind: str, where: str) -> None:
        """Raise AssertionError unless a value is of a type, such as `V1beta1ModelSpec` or `list[str]`."""
        plain = {"str": str, "int": int, "bool": bool}
        if kind.startswith("list["):
            assert isinstance(value, list), where
            for i, each in enumerate(value):
                self.check(each, kind[5:-1], f"{where}[{i}]")
        elif kind == "dict(str, str)":
            assert all(isinstance(word, str) for pair in value.items() for word in pair), where
        elif kind in plain:
            assert type(value) is plain[kind], f"{where}: expected {kind}, got {value!r}"
        elif kind == "V1Container":
            _check_pod({}, value)
        elif kind == "V1ObjectMeta":
            _check_pod(value, {"name": "c"})
        else:
            self._check_object(value, kind, where)

    def _check_object(self, value: dict[str, Any], kind: str, where: str) -> None:
        file = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind).lower()
        model = getattr(importlib.import_module(f"kserve.models.{file}"), kind)
        fields = {name: model.openapi_types[key] for key, name in model.attribute_map.items()}
        assert set(value) <= set(fields), f"{where}: {set(value) - set(fields)}"
        for name, each in value.items():
            self.check(each, fields[name], f"{where}.{name}")


def _check_pod(metadata: dict[str, Any], container: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate")
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    validator.validate(pod, validator.latest_version(), strict=True)


@pytest.mark.skipif("MSEDGE_KSERVE" not in os.environ, reason="needs KServe's wheel in MSEDGE_KSERVE (.ci/run)")
def test_kserve_published_models(monkeypatch: pytest.MonkeyPatch) -> None:
    published = Published(os.environ["MSEDGE_KSERVE"], monkeypatch)
    for one in documents("kserve.yaml").values():
        version = one["apiVersion"].rpartition("/")[2].capitalize()
        published.check(one, f"{version}{one['kind']}", one["kind"])
        wrong = json.loads(json.dumps(one).replace('"protocolVersion', '"protocolVersoin'))
        with pytest.raises(AssertionError, match="protocolVersoin"):
            published.check(wrong, f"{version}{one['kind']}", one["kind"])


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


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_the_unit_exposes_little() -> None:
    """systemd's own measure, from 0 to 10: 1.5 with systemd 252."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager", DEPLOY / "msedge.service"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode and "Overall exposure" not in done.stdout:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout.strip().splitlines()[-1]
