"""What a gateway proves itself with to registries: a TOML file, one table for each registry.

    ["registry.example"]                # https:// and oci:// by their host, with the port if the address has one
    token_file = "token"                # or token_env = "NAME": Authorization: Bearer …
    ["registry.example:5000"]
    user = "gateway"                    # Authorization: Basic …, or what an OCI registry's token service asks for
    password_file = "password"          # or password_env = "NAME"
    ca = "ca.pem"                       # the registry's certificate authority, instead of the system's
    certificate = "client.pem"          # what the gateway presents (mutual TLS), and its key
    key = "client.key"
    ["s3://models"]                     # a bucket
    endpoint = "https://s3.example"
    region = "eu-1"

The file holds no secrets itself: it names files and environment variables. They are read for every request, so a
secret can be replaced while the gateway runs. Paths are relative to the file.
"""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, structs

from edge.gateway.errors import GatewayError
from federated.tables import Reader, Table

__all__ = ["Access", "Credentials"]

MOST_SECRET = 1 << 16
"""Most bytes of a secret."""
_READ = Reader(partial(GatewayError, 500), "see docs/serving.md", lambda value: f"a {type(value).__name__}")
_PATHS = ("token_file", "password_file", "ca", "certificate", "key")
_TEXT = Annotated[str, Meta(pattern=r"\A[^\0\r\n]*\Z", description="a text of one line")]


class Access(Table, frozen=True):
    """What the gateway says to one registry, and what it expects of it. Raises GatewayError for keys that contradict
    each other."""

    token_file: _TEXT = ""
    token_env: _TEXT = ""
    user: _TEXT = ""
    """A name; for buckets, the id of an access key."""
    password_file: _TEXT = ""
    password_env: _TEXT = ""
    """For buckets, the access key's secret."""
    ca: _TEXT = ""
    certificate: _TEXT = ""
    key: _TEXT = ""
    realm: _TEXT = ""
    """The host of an OCI registry's token service, if it is another one: only there the password is sent too."""
    plain: bool = False
    """Whether secrets may be sent over http://, which others on the way can read."""
    endpoint: _TEXT = ""
    """Of buckets: the address of the server, if it is not Amazon's."""
    region: _TEXT = ""
    profile: _TEXT = ""
    """Of buckets: the profile in ~/.aws/credentials."""
    path_style: bool = True
    """Of buckets: whether the bucket is in the path of addresses, not in the host."""
    anonymous: bool = False
    """Of buckets: whether requests are not signed."""

    def __post_init__(self) -> None:
        """Raise GatewayError for keys that contradict each other."""
        super().__post_init__()
        for one, other in (("token_file", "token_env"), ("password_file", "password_env"), ("token_file", "user"),
                           ("token_env", "user")):  # fmt: skip
            if getattr(self, one) and getattr(self, other):
                raise GatewayError(500, f"expected {one} or {other}, got both")
        if bool(self.user) != bool(self.password_file or self.password_env):
            raise GatewayError(500, "expected user and password_file or password_env together, got one of them")
        if bool(self.certificate) != bool(self.key):
            raise GatewayError(500, "expected certificate and key together, got one of them")

    @property
    def token(self) -> str:
        """The token as it is now; "" if there is none. Raises GatewayError if it cannot be read."""
        return _secret(self.token_file, self.token_env)

    @property
    def password(self) -> str:
        """The password as it is now; "" if there is none. Raises GatewayError if it cannot be read."""
        return _secret(self.password_file, self.password_env)

    @property
    def basic(self) -> str:
        """The header field `Authorization` of user and password; "" if there is none."""
        return f"Basic {b64encode(f'{self.user}:{self.password}'.encode()).decode()}" if self.user else ""

    @property
    def secret(self) -> bool:
        """Whether it has a token or a password."""
        return bool(self.token_file or self.token_env or self.user)


_NOBODY = Access()


class Credentials:
    """The tables of a credentials file, by registry. Raises GatewayError for a file that is not as expected."""

    def __init__(self, tables: Mapping[str, Access] | None = None) -> None:
        self._tables = dict(tables or {})

    @staticmethod
    def of_file(path: str | os.PathLike[str]) -> Credentials:
        """The credentials in a file; without one, if `path` is empty."""
        if not os.fspath(path):
            return Credentials()
        tables = {}
        for name, given in _READ.file(path).items():
            where = f"{os.fspath(path)}: [{name}]"
            if not isinstance(given, Mapping):
                raise GatewayError(500, f"{where}: expected a table of a registry, got a {type(given).__name__}")
            try:
                access = _READ.read(Access, given, f"{where}: ")
            except GatewayError as error:
                raise error if where in str(error) else GatewayError(500, f"{where}: {error}") from None
            tables[name.lower()] = _placed(access, Path(path).parent)
        return Credentials(tables)

    def at(self, place: str) -> Access:
        """What to use at a host (with its port, if the address has one) or a bucket (s3://NAME)."""
        return self._tables.get(place.lower(), _NOBODY)


def _placed(access: Access, folder: Path) -> Access:
    """The same with paths below the file's folder."""
    changes: dict[str, Any] = {name: str(folder / getattr(access, name)) for name in _PATHS if getattr(access, name)}
    return structs.replace(access, **changes)


def _secret(path: str, variable: str) -> str:
    """The content of a file or a variable, without the line's end. Errors name the place, never the content."""
    if variable:
        text = os.environ.get(variable, "")
        if not text:
            raise GatewayError(503, f"credentials: the variable {variable} is not set")
        return _one_line(text, f"the variable {variable}")
    if not path:
        return ""
    try:
        with open(path, "rb") as file:
            raw = file.read(MOST_SECRET + 1)
        text = raw.decode("utf-8") if len(raw) <= MOST_SECRET else ""
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise GatewayError(503, f"credentials: cannot read {path!r}: {reason}") from None
    return _one_line(text, repr(path))


def _one_line(text: str, where: str) -> str:
    text = text.strip()
    if not text or not text.isprintable() or not text.isascii():
        raise GatewayError(503, f"credentials: expected one line of letters, digits and signs in {where}, got none")
    return text
