"""Certificates on real sockets: what is served, what is refused, what a reload changes."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest

from edge.gateway.errors import GatewayError
from edge.gateway.operate.settings import Tls
from edge.gateway.operate.tls import Certificates, certificate_name

x509 = pytest.importorskip("cryptography.x509")


def make(folder: Path, name: str, password: bytes | None = None, days: float = 1) -> tuple[str, str]:
    """A self-signed certificate for 127.0.0.1 and its key, both PEM."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    built = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=9)).not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
    ).sign(key, hashes.SHA256())  # fmt: skip
    coding = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    certificate, private = folder / f"{name}.crt", folder / f"{name}.key"
    certificate.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, coding)
    )
    return str(certificate), str(private)


def client(trusts: str, own: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=trusts)
    if own:
        context.load_cert_chain(*own)
    return context


def meet(server: ssl.SSLContext, context: ssl.SSLContext) -> dict[str, str]:
    """One connection: what the client sees of the server. Raises what the client meets."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        seen: list[bytes] = []

        def serve() -> None:
            raw, _ = listening.accept()
            raw.settimeout(300)
            try:
                with raw, server.wrap_socket(raw, server_side=True) as connection:
                    seen.append(connection.recv(5))
                    connection.sendall(b"there")
            except OSError:
                pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with (
                socket.create_connection(listening.getsockname(), timeout=300) as raw,
                context.wrap_socket(raw, server_hostname="127.0.0.1") as connection,
            ):
                connection.sendall(b"hello")
                assert connection.recv(5) == b"there"
                name = dict(pair[0] for pair in connection.getpeercert()["subject"])["commonName"]  # type: ignore
                return {"name": name, "version": connection.version() or "", "cipher": connection.cipher()[0],  # type: ignore
                        "alpn": connection.selected_alpn_protocol() or ""}  # fmt: skip
        finally:
            thread.join(300)


def test_only_modern_tls(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "server")
    made, context = Certificates(Tls(certificate, key)), client(certificate)
    context.set_alpn_protocols(["h2", "http/1.1"])
    assert meet(made.context, context) | {"cipher": ""} == {
        "name": "server", "version": "TLSv1.3", "cipher": "", "alpn": "http/1.1",
    }  # fmt: skip
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    met = meet(made.context, context)
    assert met["version"] == "TLSv1.2"
    assert met["cipher"].startswith("ECDHE-ECDSA-")
    assert made.context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert not any(cipher["kea"] == "kx-rsa" or "CBC" in cipher["name"] for cipher in made.context.get_ciphers())


def test_new_files_are_served_after_refresh(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "server")
    made = Certificates(Tls(certificate, key))
    assert not made.refresh()
    other = make(tmp_path, "renewed")
    kept = str(tmp_path / "kept.crt")
    Path(kept).write_bytes(Path(certificate).read_bytes())
    Path(other[0]).replace(certificate)
    with pytest.raises(GatewayError, match="expected a certificate and its key"):
        made.refresh()  # the key is still the old one's
    assert meet(made.context, client(kept))["name"] == "server"
    Path(other[1]).replace(key)
    assert made.refresh()
    assert meet(made.context, client(certificate))["name"] == "renewed"


def test_new_files_are_served_by_a_loop_s_socket(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "server")
    made = Certificates(Tls(certificate, key))
    other = make(tmp_path, "renewed")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(1))
        writer.close()

    async def ask(port: int, trusts: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client(trusts))
        writer.write(b"x")
        found = await reader.read()
        writer.close()
        await writer.wait_closed()
        return found

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=made.context) as server:
            port = server.sockets[0].getsockname()[1]
            assert await ask(port, certificate) == b"x"
            for new, old in zip(other, (certificate, key), strict=True):
                Path(old).write_bytes(Path(new).read_bytes())
            assert made.refresh()
            assert await ask(port, other[0]) == b"x"

    asyncio.run(run())


def test_clients_show_certificates(tmp_path: Path) -> None:
    server, alice, bob = (make(tmp_path, name) for name in ("server", "alice", "bob"))
    made = Certificates(Tls(*server, client_ca=alice[0]))
    assert meet(made.context, client(server[0], alice))["name"] == "server"
    for own in (None, bob):
        with pytest.raises((ssl.SSLError, ConnectionError)):
            meet(made.context, client(server[0], own))
    kept = tmp_path / "alice.own.crt"
    kept.write_bytes(Path(alice[0]).read_bytes())
    Path(alice[0]).write_bytes(Path(bob[0]).read_bytes())
    assert made.refresh()
    assert meet(made.context, client(server[0], bob))["name"] == "server"
    with pytest.raises((ssl.SSLError, ConnectionError)):
        meet(made.context, client(server[0], (str(kept), alice[1])))


@pytest.mark.parametrize("what", ["missing", "damaged", "password", "authority"])
def test_files_that_are_wrong(tmp_path: Path, what: str) -> None:
    certificate, key = make(tmp_path, "server", b"secret" if what == "password" else None)
    authority = ""
    if what == "missing":
        Path(key).unlink()
    elif what == "damaged":
        Path(certificate).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    elif what == "authority":
        authority = str(tmp_path / "ca.pem")
        Path(authority).write_text("nothing")
    match = {"password": "the key has a password", "authority": "tls.client_ca"}.get(what, "tls: expected")
    with pytest.raises(GatewayError, match=match):
        Certificates(Tls(certificate, key, authority))


def test_an_expired_certificate_does_not_replace_a_valid_one(tmp_path: Path) -> None:
    certificate, key = make(tmp_path, "a", days=5)
    served = Certificates(Tls(certificate=certificate, key=key))
    assert abs(served.expires - time.time() - 5 * 86_400) < 120
    before = Path(certificate).read_bytes()
    make(tmp_path, "a", days=-1)
    with pytest.raises(GatewayError, match=r"the new certificate in .* expired at .*; the one before stays in use"):
        served.refresh()
    assert served.expires > time.time() and Path(certificate).read_bytes() != before
    make(tmp_path, "a", days=7)
    assert served.refresh() and served.expires > time.time() + 6 * 86_400


def test_the_name_in_a_certificate() -> None:
    subject = ((("organizationName", "o"),), (("commonName", "cam-1"),))
    assert certificate_name(None) == certificate_name({}) == ""
    assert certificate_name({"subject": subject}) == "cam-1"
    assert certificate_name({"subject": subject, "subjectAltName": (("IP Address", "10.0.0.1"),)}) == "cam-1"
    assert certificate_name({"subject": subject, "subjectAltName": (("URI", "spiffe://x/cam-2"),)}) == "spiffe://x/cam-2"
