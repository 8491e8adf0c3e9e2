"""Who may use which models and devices over gRPC, as over HTTP; the audit log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest

from edge.gateway.access import tokens
from edge.gateway.grpc.calls import _certificate
from edge.gateway.grpc.messages import message
from edge.gateway.operate.settings import Tls
from edge.gateway.operate.tls import Certificates
from tests.edge.gateway.grpc.serving import call, listening
from tests.edge.gateway.live import live, scaled
from tests.edge.gateway.operate.test_tls import make
from tests.waiting import until


def request(model: str, device: str = "") -> Any:
    made = message("ModelInferRequest")(model_name=model, raw_input_contents=[bytes(16)])
    made.inputs.add(name="x", datatype="FP32", shape=[1, 4])
    if device:
        made.parameters["device"].string_param = device
    return made


def code_of(address: str, method: str, sent: Any, token: str) -> str:
    try:
        call(address, method, sent, metadata=(("authorization", f"Bearer {token}"),))
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def test_tokens_name_models_and_devices(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    one = tokens.add(file, "one", ["infer", "manage"], models=("a*",), devices=("d1",))
    made = {name: scaled(tmp_path / f"{name}.mslite", 1.0) for name in ("a1", "b1")}
    with live(made, access__tokens=str(file), access__management="token") as there, listening(there) as to:
        told = {
            (method, name): code_of(to, method, message(f"{method}Request")(**{key: name}), one)
            for method, key in (("ModelMetadata", "name"), ("ModelConfig", "name"),
                                ("RepositoryModelUnload", "model_name"))
            for name in ("b1", "none", "a1")
        }  # fmt: skip
        for (_, name), code in told.items():
            assert code == ("OK" if name == "a1" else "PERMISSION_DENIED")
        call(to, "RepositoryModelLoad", message("RepositoryModelLoadRequest")(model_name="a1"),
             metadata=(("authorization", f"Bearer {one}"),))  # fmt: skip
        infer = {name: code_of(to, "ModelInfer", request(name), one) for name in ("a1", "b1", "none")}
        assert infer == {"a1": "OK", "b1": "PERMISSION_DENIED", "none": "PERMISSION_DENIED"}
        devices = {name: code_of(to, "ModelInfer", request("a1", name), one) for name in ("d1", "d2", "none")}
        assert devices == {"d1": "OK", "d2": "PERMISSION_DENIED", "none": "PERMISSION_DENIED"}
        listed = call(to, "RepositoryIndex", message("RepositoryIndexRequest")(),
                      metadata=(("authorization", f"Bearer {one}"),))  # fmt: skip
        assert [row.name for row in listed.models] == ["a1"]


def test_a_quota_counts_each_request_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    slow = tokens.add(file, "slow", ["infer"], rate=0.001)
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, access__tokens=str(file)) as there, listening(there) as to:
        assert [code_of(to, "ModelInfer", request("m"), slow) for _ in range(2)] == ["OK", "RESOURCE_EXHAUSTED"]


def test_changes_are_audited(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    token = tokens.add(file, "operator", ["manage"])
    told = {"access__tokens": str(file), "access__management": "token"}
    with live({"m": scaled(tmp_path / "m.mslite", 1.0)}, **told) as there, listening(there) as to:
        for name in ("m", "none"):
            code_of(to, "RepositoryModelUnload", message("RepositoryModelUnloadRequest")(model_name=name), token)
        until(lambda: there.log.getvalue().count("RepositoryModelUnload") == 2)
        rows = [row for row in there.log.getvalue().splitlines() if "RepositoryModelUnload" in row]
        for row, model, outcome in zip(rows, ("m", "none"), ("done", "404"), strict=True):
            assert all(word in row for word in (f"model={model}", "who=operator", "peer=127.0.0.1", outcome)), row


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ({}, ""),
        ({"x509_common_name": [b"c"]}, "c"),
        ({"x509_common_name": [b"c"], "x509_subject_alternative_name": [b"10.0.0.1"], "peer_ip": [b"10.0.0.1"]}, "c"),
        ({"x509_common_name": [b"c"], "x509_subject_alternative_name": [b"10.0.0.1", b"u:x", b"d1"],
          "peer_dns": [b"d1"], "peer_uri": [b"u:x"]}, "u:x"),
    ],
)  # fmt: skip
def test_the_name_in_a_certificate(found: dict[str, list[bytes]], name: str) -> None:
    assert _certificate(found) == name


def test_a_device_is_who_its_certificate_says(tmp_path: Path) -> None:
    server, own = make(tmp_path, "server"), make(tmp_path, "device")
    tls = {"tls__certificate": server[0], "tls__key": server[1], "tls__client_ca": own[0]}
    made = {"m": scaled(tmp_path / "m.mslite", 1.0)}
    certificates = Certificates(Tls(*server, client_ca=own[0]))
    served = live(made, access__devices="certificate", **tls)
    with served as there, listening(there, certificates) as to:
        shown = grpc.ssl_channel_credentials(*(Path(path).read_bytes() for path in (server[0], own[1], own[0])))
        with grpc.secure_channel(to, shown) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            infer(request("m", "device").SerializeToString(), timeout=60)
            with pytest.raises(grpc.RpcError) as caught:
                infer(request("m", "other").SerializeToString(), timeout=60)
            assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
