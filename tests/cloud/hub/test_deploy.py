"""Examples of deployment of hub and agent: real validators accept them, and they agree with the programs and each
other."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from cloud.hub.server.settings import Settings, read_settings
from edge.agent.checking.health import is_loopback
from edge.agent.config import TEMPLATE, read
from tests.conftest import ROOT
from tests.test_docs import wrong

DEPLOY = ROOT / "deploy"
UNITS = ("msedge-agent.service", "msedge-hub.service", "msedge-hub-sign.service", "msedge-hub-sign.timer")
SERVICES = UNITS[:3]
PORT = 8643


def documents(name: str) -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    return list(yaml.safe_load_all((DEPLOY / name).read_text("utf-8")))


def settings_in(text: str, tmp_path: Path) -> Settings:
    (tmp_path / "hub.toml").write_text(text, "utf-8")
    return read_settings(tmp_path / "hub.toml")


def check_hub(words: list[str]) -> None:
    """That `msedge hub` has a command with these options."""
    assert wrong(["hub", *words]) == ""


# -- the image ---------------------------------------------------------------------------------------------------------


def test_the_image() -> None:
    text = (DEPLOY / "Dockerfile.hub").read_text("utf-8")
    lines = re.sub(r"\\\n", "", text).splitlines()
    last = lines[max(at for at, line in enumerate(lines) if line.startswith("FROM ")) :]
    (user,) = [line.split()[1] for line in last if line.startswith("USER ")]
    assert user == "10001:10001"
    (command,) = [line[4:] for line in last if line.startswith("CMD ")]
    check_hub(json.loads(command))
    (check,) = [line.partition("CMD ")[2] for line in last if line.startswith("HEALTHCHECK")]
    code = json.loads(check)[2]
    compile(code, "healthcheck", "exec")
    assert f":{PORT}/v1/health" in code and f"EXPOSE {PORT}" in text
    own = (DEPLOY / "Dockerfile.dockerignore").read_bytes()
    assert (DEPLOY / "Dockerfile.hub.dockerignore").read_bytes() == own
    copied = {line.split()[1].removeprefix("./") for line in lines if line.startswith("COPY ") and "--from" not in line}
    allowed = {line[1:] for line in own.decode().splitlines() if line.startswith("!")}
    assert copied - {"pyproject.toml"} <= allowed


# -- compose -----------------------------------------------------------------------------------------------------------


def test_compose_published_schema() -> None:
    """The specification's own schema, in which a wrong key is an error."""
    jsonschema = pytest.importorskip("jsonschema")
    try:
        package = metadata.distribution("check-jsonschema")
    except metadata.PackageNotFoundError:
        pytest.skip("needs check-jsonschema, which has the schema")
    path = package.locate_file("check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    schema = json.loads(Path(str(path)).read_text("utf-8"))
    (found,) = documents("hub.compose.yaml")
    validator = jsonschema.Draft7Validator(schema)
    validator.validate(found)
    spoiled = {**found, "services": {**found["services"], "hub": {**found["services"]["hub"], "reed_only": True}}}
    with pytest.raises(jsonschema.ValidationError, match="reed_only"):
        validator.validate(spoiled)


def test_compose_agrees_with_the_hub(tmp_path: Path) -> None:
    (found,) = documents("hub.compose.yaml")
    services, hub = found["services"], found["services"]["hub"]
    settings = settings_in((DEPLOY / "hub.toml").read_text("utf-8"), tmp_path)
    assert settings.address == f"0.0.0.0:{PORT}" and hub["ports"] == [f"{PORT}:{PORT}"] and settings.clients
    assert {Path(path).name for path in (settings.certificate, settings.key)} | {"pgpass"} == set(hub["secrets"])
    assert settings.database == "postgresql://hub@postgres/hub" and "postgres" in hub["depends_on"]
    mounts = {words.split(":")[1] for words in hub["volumes"]}
    assert mounts == {"/etc/msedge/hub.toml", settings.repository, "/var/lib/msedge-hub"}
    database = services["postgres"]["environment"]
    assert (database["POSTGRES_USER"], database["POSTGRES_DB"]) == ("hub", "hub")
    check_hub(services["sign"]["command"])
    for name in ("hub", "sign"):
        assert services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
    assert all("secrets/online" not in words for words in hub["volumes"])  # it has no key that signs
    used = {name for one in services.values() for name in one.get("secrets", ())}
    assert used == set(found["secrets"])
    assert services["hub"]["image"] == services["sign"]["image"] and found["networks"]["database"]["internal"]


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.29", "latest"])
def test_kubernetes_published_schemas(version: str) -> None:
    """Every object, with no key that its schema does not know."""
    validator = pytest.importorskip("kubernetes_validate")
    wanted = validator.latest_version() if version == "latest" else version
    for one in documents("hub.kubernetes.yaml"):
        validator.validate(one, wanted, strict=True)
        with pytest.raises(validator.ValidationError):
            validator.validate({**one, "metadata": {**one["metadata"], "lables": {}}}, wanted, strict=True)


def kinds(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = documents(name)
    assert len({(one["kind"], one["metadata"]["name"]) for one in found}) == len(found)
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pods(found: dict[tuple[str, str], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The templates of pods, by the name of what makes them."""
    made = {name: one["spec"]["template"] for (kind, name), one in found.items() if kind == "StatefulSet"}
    jobs = {
        name: one["spec"]["jobTemplate"]["spec"]["template"] for (kind, name), one in found.items() if kind == "CronJob"
    }
    return {**made, **jobs}


def test_kubernetes_agrees_with_the_hub(tmp_path: Path) -> None:
    found = kinds("hub.kubernetes.yaml")
    settings = settings_in(found["ConfigMap", "hub"]["data"]["hub.toml"], tmp_path)
    hub = pods(found)["hub"]["spec"]
    (container,) = hub["containers"]
    check_hub(container["args"])
    assert settings.address == f"0.0.0.0:{container['ports'][0]['containerPort']}" and settings.clients
    tls = next(one["mountPath"] for one in container["volumeMounts"] if one["name"] == "tls")
    assert (settings.certificate, settings.key) == (f"{tls}/tls.crt", f"{tls}/tls.key")
    assert settings.database == "postgresql://hub@postgres/hub" and ("Service", "postgres") in found
    assert [entry["name"] for entry in container["env"]] == ["PGPASSWORD"]
    sign = pods(found)["hub-sign"]["spec"]
    (signing,) = sign["containers"]
    check_hub(signing["args"])
    assert signing["args"][1] == settings.repository
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/v1/health", "port": "https", "scheme": "HTTPS"}
    assert container["livenessProbe"]["tcpSocket"]["port"] == "https"
    from cloud.hub.server.running import GRACE

    assert hub["terminationGracePeriodSeconds"] > GRACE + 5
    assert found["StatefulSet", "hub"]["spec"]["replicas"] == 1  # a second one would find the database taken
    secrets = {name: {volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume}
               for name, pod in pods(found).items()}  # fmt: skip
    assert secrets == {"hub": {"hub-tls"}, "postgres": set(), "hub-sign": {"hub-keys"}}


def test_every_pod_is_bound() -> None:
    """As the namespace's policy `restricted` asks, and with room that is stated."""
    found = kinds("hub.kubernetes.yaml")
    assert found["Namespace", "msedge-hub"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, template in pods(found).items():
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False and pod["enableServiceLinks"] is False
        claims = {one["metadata"]["name"] for one in found.get(("StatefulSet", name), {"spec": {}})["spec"].get(
            "volumeClaimTemplates", ())}  # fmt: skip
        volumes = {one["name"] for one in pod["volumes"]} | claims
        containers = [*pod.get("initContainers", ()), *pod["containers"]]
        assert {mount["name"] for one in containers for mount in one["volumeMounts"]} == volumes
        for one in containers:
            assert one["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert one["resources"]["limits"]["memory"] and one["resources"]["requests"].keys() == {"cpu", "memory"}


def test_policies_let_through_what_is_needed_and_no_more() -> None:
    found = kinds("hub.kubernetes.yaml")
    policies = {name: one["spec"] for (kind, name), one in found.items() if kind == "NetworkPolicy"}
    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    labels = {name: template["metadata"]["labels"] for name, template in pods(found).items()}
    for name, own in labels.items():
        assert policies[name]["podSelector"]["matchLabels"] == own and set(policies[name]["policyTypes"]) == {
            "Ingress", "Egress"
        }  # fmt: skip
    for (kind, name), one in found.items():
        if kind == "Service":
            assert one["spec"]["selector"] == labels[name]
            ports = {port["name"] for port in pods(found)[name]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in one["spec"]["ports"]} == ports
    assert "egress" not in policies["postgres"] and "ingress" not in policies["hub-sign"]
    (source,) = policies["postgres"]["ingress"][0]["from"]
    assert source["podSelector"]["matchLabels"] == labels["hub"]
    assert policies["hub"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": "https"}]}]


# -- systemd -----------------------------------------------------------------------------------------------------------


def unit(name: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(DEPLOY / name, "utf-8")
    return parser


@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_has_the_required_settings(name: str) -> None:
    service = unit(name)["Service"]
    assert service["User"] not in ("", "root")
    for key in ("NoNewPrivileges", "MemoryDenyWriteExecute", "PrivateTmp", "ProtectHome", "LockPersonality"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""
    words = shlex.split(service["ExecStart"])
    if "hub" in name:
        assert words[:2] == ["/opt/msedge/bin/msedge", "hub"]
        check_hub(words[2:])
    else:
        from edge.agent.command.__main__ import _parser

        given = _parser().parse_args(words[words.index("/opt/msedge/msedge-agent.pyz") + 1 :])
        assert given.command == "run" and given.json


def test_units_agree_with_the_programs(tmp_path: Path) -> None:
    from cloud.hub.server.running import GRACE

    assert float(unit("msedge-hub.service")["Service"]["TimeoutStopSec"]) > GRACE + 5
    agent = unit("msedge-agent.service")["Service"]
    assert agent["OOMPolicy"] == "continue" and agent["Restart"] == "always"
    (tmp_path / "agent.toml").write_text(TEMPLATE)
    assert read(tmp_path / "agent.toml").agent.folder == f"/var/lib/{agent['StateDirectory']}"
    users = {unit(name)["Service"]["User"] for name in SERVICES}
    assert len(users) == 3
    rules = (DEPLOY / "msedge-agent.rules").read_text("utf-8")
    assert f'subject.user === "{agent["User"]}"' in rules and rules.count("(") == rules.count(")")
    assert is_loopback("http://127.0.0.1:8000/health") and "AF_INET" in agent["RestrictAddressFamilies"]


def _analyzed(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=300, check=False)
    if "Failed to" in done.stderr and "msedge" not in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    return done


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_a_unit(tmp_path: Path, name: str) -> None:
    for each in UNITS:
        text = (DEPLOY / each).read_text("utf-8")
        (tmp_path / each).write_text(
            re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE), "utf-8"
        )
    done = _analyzed("verify", "--man=no", tmp_path / name)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("name", SERVICES)
def test_a_unit_exposes_little(name: str) -> None:
    """systemd's own measure, from 0 to 100."""
    done = _analyzed("security", "--offline=true", "--threshold=20", "--no-pager", DEPLOY / name)
    if done.returncode and "Overall exposure" not in done.stdout:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout.strip().splitlines()[-1]
