"""OCI registries on 127.0.0.1 for tests: the specification's endpoints in this process, and Docker's registry."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.error
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.waiting import until

USER, PASSWORD = "gateway", "secret-1"
HTPASSWD = "gateway:$2y$05$iEe4/L..qUakY798ngS3n.JnELW9W5cRVmpieWWHT8s.wdDKcWQ0a\n"
"""The bcrypt hash of PASSWORD."""
BASIC = f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
KINDS = ("specification", *(["docker-registry"] if shutil.which("docker-registry") else []))


class Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *given: Any) -> None:
        pass

    def answer(self, status: int, body: bytes = b"", **fields: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **fields}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@contextmanager
def running(handler: type[Quiet], encryption: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server on a free port: HOST:PORT."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that leaves in the middle of a reply is what some tests are about."""

    server = Server(("127.0.0.1", 0), handler)
    if encryption is not None:
        server.socket = encryption.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Spec:
    """The state of a registry in this process. auth: "", "basic" or "token". cut: bytes of a blob after which its
    connection breaks. elsewhere: where blobs are redirected to. asked: (method, path, Range, Authorization)."""

    def __init__(self, auth: str = "") -> None:
        self.auth, self.host = auth, ""
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[tuple[str, str, str, str]] = []
        self.cut: int | None = None
        self.elsewhere = ""
        self.realm = ""
        self.tokens = 0

    def challenge(self, authorization: str) -> dict[str, str]:
        """The field that a request without access gets; empty if it has access."""
        if not self.auth or (self.auth == "basic" and authorization == BASIC):
            return {}
        if self.auth == "basic":
            return {"WWW_Authenticate": 'Basic realm="models"'}
        if authorization == f"Bearer token-{self.tokens}" and self.tokens:
            return {}
        realm = self.realm or f"http://{self.host}/token"
        return {"WWW_Authenticate": f'Bearer realm="{realm}",service="models",scope="repository:team/m:pull,push"'}

    def token(self, query: str, authorization: str) -> tuple[int, bytes]:
        assert parse_qs(query)["service"] == ["models"] and "repository" in query
        if authorization != BASIC:
            return 401, b"{}"
        self.tokens += 1
        return 200, json.dumps({"token": f"token-{self.tokens}", "expires_in": 300}).encode()

    @contextmanager
    def run(self) -> Iterator[str]:
        spec = self

        class Handler(Quiet):
            def do(self) -> None:
                parts = urlsplit(self.path)
                said = self.headers.get("Authorization", "")
                spec.asked.append((self.command, parts.path, self.headers.get("Range", ""), said))
                if parts.path == "/token":
                    status, body = spec.token(parts.query, said)
                    return self.answer(status, body)
                data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if missing := spec.challenge(said):
                    return self.answer(401, b"{}", **missing)
                found = re.fullmatch(r"/v2/([a-z0-9/-]+?)/(manifests|blobs|tags)/(.*)", parts.path)
                if found is None:
                    return self.answer(404)
                _, kind, name = found.groups()
                getattr(self, f"{kind}_{self.command.lower()}")(name, data, parse_qs(parts.query))

            do_GET = do_HEAD = do_PUT = do_POST = do

            def tags_get(self, name: str, data: bytes, query: dict[str, list[str]]) -> None:
                most, last = int(query["n"][0]), query.get("last", [""])[0]
                tags = sorted(tag for tag in spec.manifests if ":" not in tag and tag > last)
                page = tags[: min(most, 2)]  # fewer than asked for, as registries may
                link = f'</v2/team/m/tags/list?n={most}&last={page[-1]}>; rel="next"' if len(tags) > 2 else ""
                body = json.dumps({"name": "team/m", "tags": page}).encode()
                self.answer(200, body, **({"Link": link} if link else {}))

            def manifests_get(self, name: str, data: bytes, query: object) -> None:
                body = spec.manifests.get(name)
                if body is None:
                    return self.answer(404)
                digest = f"sha256:{sha256(body).hexdigest()}"
                if self.headers.get("If-None-Match") == f'"{digest}"':
                    return self.answer(304)
                self.answer(200, body, Docker_Content_Digest=digest)

            manifests_head = manifests_get

            def manifests_put(self, name: str, data: bytes, query: object) -> None:
                spec.manifests[name] = spec.manifests[f"sha256:{sha256(data).hexdigest()}"] = data
                self.answer(201)

            def blobs_get(self, name: str, data: bytes, query: object) -> None:
                body = spec.blobs.get(name)
                if body is None:
                    return self.answer(404)
                if spec.elsewhere:
                    return self.answer(307, Location=f"{spec.elsewhere}/{name}")
                asked = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
                start = int(asked[1]) if asked else 0
                if start >= len(body):
                    return self.answer(416)
                fields = {"Content_Range": f"bytes {start}-{len(body) - 1}/{len(body)}"} if start else {}
                if spec.cut is not None and self.command == "GET":
                    self.send_response(206 if start else 200)
                    self.send_header("Content-Length", str(len(body) - start))
                    for key, value in fields.items():
                        self.send_header(key.replace("_", "-"), value)
                    self.end_headers()
                    self.wfile.write(body[start : start + spec.cut])
                    self.close_connection = True
                    return None
                self.answer(206 if start else 200, body[start:], **fields)

            blobs_head = blobs_get

            def blobs_post(self, name: str, data: bytes, query: object) -> None:
                self.answer(202, Location="/v2/team/m/blobs/uploads/one?state=1")

            def blobs_put(self, name: str, data: bytes, query: dict[str, list[str]]) -> None:
                (digest,) = query["digest"]
                good = digest == f"sha256:{sha256(data).hexdigest()}" and query["state"] == ["1"]
                if good:
                    spec.blobs[digest] = data
                self.answer(201 if good else 400)

        with running(Handler) as self.host:
            yield self.host


@contextmanager
def docker_registry(folder: Path, auth: str = "", token: dict[str, str] | None = None) -> Iterator[str]:
    """Debian's docker-registry on a free port, with a htpasswd file if `auth` is "basic", or a token service."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        host = f"127.0.0.1:{free.getsockname()[1]}"
    config: dict[str, Any] = {
        "version": 0.1, "log": {"level": "error", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(folder / "registry")}}, "http": {"addr": host},
    }  # fmt: skip
    if auth == "basic":
        (folder / "htpasswd").write_text(HTPASSWD)
        config["auth"] = {"htpasswd": {"realm": "models", "path": str(folder / "htpasswd")}}
    if token is not None:
        config["auth"] = {"token": token}
    (folder / "registry.yml").write_text(json.dumps(config))  # JSON is YAML
    with open(folder / "registry.log", "wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "registry.yml")], stdout=log, stderr=log)
    try:
        until(lambda: process.poll() is not None or _answers(host))
        assert process.poll() is None, (folder / "registry.log").read_text()
        yield host
    finally:
        process.terminate()
        process.wait()


def _answers(host: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{host}/v2/", timeout=5).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.status == 401
    except OSError:
        return False
    return True


@contextmanager
def token_service(folder: Path) -> Iterator[dict[str, str]]:
    """A service that gives tokens of Docker's token authentication to USER: the registry's settings for it."""
    import jwt
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tokens")])
    built = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(1).not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(True, None), True)
    ).sign(key, hashes.SHA256())  # fmt: skip
    (folder / "tokens.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    chain = [b64encode(built.public_bytes(serialization.Encoding.DER)).decode()]

    class Handler(Quiet):
        def do_GET(self) -> None:
            said = self.headers.get("Authorization", "")
            if b64decode(said.removeprefix("Basic ")) != f"{USER}:{PASSWORD}".encode():
                return self.answer(401)
            query = parse_qs(urlsplit(self.path).query)
            access = []
            for scope in query.get("scope", ()):
                kind, which, actions = scope.split(":")
                access.append({"type": kind, "name": which, "actions": actions.split(",")})
            claims = {"iss": "tokens", "sub": USER, "aud": query["service"][0], "access": access, "jti": "1",
                      "exp": now + timedelta(hours=1), "nbf": now - timedelta(hours=1), "iat": now}  # fmt: skip
            token = jwt.encode(claims, key, "ES256", headers={"x5c": chain})
            self.answer(200, json.dumps({"token": token, "expires_in": 300}).encode())

    with running(Handler) as host:
        yield {"realm": f"http://{host}/token", "service": "models", "issuer": "tokens",
               "rootcertbundle": str(folder / "tokens.pem")}  # fmt: skip
