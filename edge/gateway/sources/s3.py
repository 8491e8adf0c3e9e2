"""Models in S3-compatible storage, laid out like a folder of models (see `listing`): s3://BUCKET/PREFIX.

Credentials, the endpoint and the region come from the bucket's table of `repository.credentials`, else from where
Amazon's tools take them: variables AWS_…, ~/.aws/credentials and ~/.aws/config, a web identity, the instance. A bundle
is identified by its address, ETag and size: an object that is written again is downloaded again.
"""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import urlsplit

from edge.gateway.access.addresses import is_loopback
from edge.gateway.errors import GatewayError
from edge.gateway.models.config import parse_config
from edge.gateway.models.names import is_name, shown, version_of
from edge.gateway.sources.catalogue import Before, Fetched, Row, Rows
from edge.gateway.sources.credentials import Credentials
from edge.gateway.sources.listing import BUNDLE, CONFIG, MOST_CONFIG, joined
from lite_runtime.errors import MissingExtraError

__all__ = ["S3", "Bucket"]

MOST_OBJECTS = 10_000
_PIECE = 8 << 20
"""Bytes of one request for a part of an object."""


class Bucket:
    """A bucket and a prefix in it, as obstore's store."""

    def __init__(self, text: str, credentials: Credentials, timeout: float) -> None:
        """Raises GatewayError for another address, MissingExtraError without obstore."""
        parts = urlsplit(text)
        if parts.scheme != "s3" or not parts.netloc or "@" in text or parts.query or not text.isprintable():
            raise GatewayError(400, f"expected s3://BUCKET/PREFIX, got {shown(text)}")
        self.bucket, self.prefix = parts.netloc, parts.path.strip("/")
        self.text = f"s3://{self.bucket}/{self.prefix}"
        self._access, self._timeout = credentials.at(f"s3://{self.bucket}"), timeout
        try:
            import obstore
        except ModuleNotFoundError:
            raise MissingExtraError("obstore", "s3", "models in S3-compatible storage are read with it") from None
        self.obstore = obstore

    @property
    def store(self) -> Any:
        """A store with the credentials as they are now. Raises GatewayError if they cannot be read."""
        from obstore.store import S3Store

        access, profile = self._access, _profile(self._access.profile)
        config: dict[str, Any] = {"virtual_hosted_style_request": not access.path_style}
        if access.anonymous:
            config["skip_signature"] = True
        elif access.user:
            config |= {"access_key_id": access.user, "secret_access_key": access.password}
        elif "AWS_ACCESS_KEY_ID" not in os.environ and "aws_access_key_id" in profile:
            config |= {key.removeprefix("aws_"): profile[key] for key in _PROFILED if key in profile}
        endpoint = access.endpoint or _setting("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") or profile.get("endpoint_url")
        region = access.region or _setting("AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region")
        config |= {key: value for key, value in (("endpoint", endpoint), ("region", region)) if value}
        host = urlsplit(endpoint or "").hostname or ""
        options: dict[str, Any] = {
            "connect_timeout": f"{max(1, round(self._timeout))}s", "read_timeout": f"{max(1, round(self._timeout))}s",
            "timeout": "600s", "allow_http": access.plain or host == "localhost" or is_loopback(host),
        }  # fmt: skip
        if access.ca:
            with self.failing(self.text):
                options["root_certificate"] = Path(access.ca).read_bytes()
        with self.failing(self.text):
            return S3Store(
                self.bucket, prefix=self.prefix or None, config=cast(Any, config), client_options=cast(Any, options),
                retry_config={"max_retries": 2},
            )  # fmt: skip

    @contextlib.contextmanager
    def failing(self, where: str) -> Iterator[None]:
        """Raise GatewayError (503) for whatever the storage or the network does."""
        try:
            yield
        except (self.obstore.exceptions.BaseError, OSError, ValueError) as error:
            text = f"cannot fetch {shown(where)}: {_reason(error)}"
            raise GatewayError(503, text, retry_after=self._timeout) from None


class S3:
    """A catalogue in a bucket."""

    def __init__(self, text: str, credentials: Credentials, timeout: float = 10.0) -> None:
        """Raises as `Bucket` does."""
        self._bucket, self.again = Bucket(text, credentials, timeout), timeout
        self.address = self.name = self._bucket.text
        self._configs: dict[str, tuple[str, Mapping[str, Any]]] = {}
        """By path, the ETag and content of configurations."""
        self._tags: dict[str, str] = {}
        """By key, the ETag of bundles."""

    def read(self, before: Before) -> Rows:
        """See `Catalogue`."""
        bucket = self._bucket
        store = bucket.store
        objects: dict[str, Any] = {}
        with bucket.failing(self.address):
            for some in bucket.obstore.list(store):
                objects |= {each["path"]: each for each in some}
                if len(objects) > MOST_OBJECTS:
                    raise GatewayError(503, f"{self.address}: expected at most {MOST_OBJECTS} objects, got more; give a"
                                       " longer prefix")  # fmt: skip
        found: dict[tuple[str, int], Row] = {}
        problems: dict[str, str] = {}
        configs = self._read_configs(store, objects, problems)
        for path, about in sorted(objects.items()):
            place = _place(path)
            if place is None:
                continue
            name, version = place
            if place in found:
                twice = f"version {version} exists twice; remove {path!r}"
                problems[name] = joined(problems.get(name, ""), twice)
                continue
            tag = f"{self.address}\0{path}\0{about.get('e_tag')}\0{about['size']}"
            found[place] = Row(
                name=name, version=version, key=blake2b(tag.encode(), digest_size=32).hexdigest(), where=path,
                size=about["size"], config=configs.get(name, _last_config(name, before)),
            )  # fmt: skip
            self._tags[found[place].key] = about.get("e_tag") or ""
        self._tags = {row.key: self._tags[row.key] for row in found.values()}
        return Rows(list(found.values()), {name: why for name, why in problems.items() if why})

    def _read_configs(
        self, store: Any, objects: Mapping[str, Any], problems: dict[str, str]
    ) -> dict[str, Mapping[str, Any] | None]:
        """By model, its configuration, read again if its ETag has changed; None: it has none. Models whose
        configuration is wrong are left out."""
        found: dict[str, Mapping[str, Any] | None] = {place[0]: None for path in objects if (place := _place(path))}
        for path, about in objects.items():
            name = _configured(path)
            if name not in found:
                continue
            try:
                tag, given = self._configs.get(path, ("", {}))
                if not tag or tag != about.get("e_tag"):
                    given = self._config(store, path, about["size"])
                    self._configs[path] = about.get("e_tag") or "", given
                found[name] = given
            except GatewayError as error:
                problems[name] = joined(problems.get(name, ""), str(error))
                del found[name]
        return found

    def _config(self, store: Any, path: str, size: int) -> Mapping[str, Any]:
        if size > MOST_CONFIG:
            raise GatewayError(503, f"{path}: expected at most {MOST_CONFIG} bytes, got {size}")
        with self._bucket.failing(path):
            raw = bytes(self._bucket.obstore.get_range(store, path, start=0, end=size)) if size else b""
        try:
            found = tomllib.loads(raw.decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise GatewayError(503, f"{path}: expected TOML, got something else: {str(error)[:200]}") from None
        parse_config(found, path)
        return found

    @contextlib.contextmanager
    def fetch(self, row: Row, start: int) -> Iterator[Fetched]:
        """See `Catalogue`."""
        yield Fetched(start, row.size, self._pieces(row, start))

    def put(self, path: str, data: IO[bytes]) -> None:
        """Store an object, in one step or none. Raises GatewayError."""
        with self._bucket.failing(path):
            self._bucket.obstore.put(self._bucket.store, path, data)

    def _pieces(self, row: Row, start: int) -> Iterator[bytes]:
        """An object's content, a request for each piece; all of the same object, as its ETag shows."""
        bucket, store, tag = self._bucket, self._bucket.store, self._tags.get(row.key)
        for begin in range(start, row.size or 0, _PIECE):
            asked = {"range": (begin, min(begin + _PIECE, row.size or 0)), **({"if_match": tag} if tag else {})}
            with bucket.failing(row.where):
                got = bucket.obstore.get(store, row.where, options=asked)
                tag = got.meta.get("e_tag")
                yield bytes(got.bytes())


def _place(path: str) -> tuple[str, int] | None:
    """The model and version of an object; None if it is no bundle."""
    parts = path.split("/")
    if len(parts) == 1 and path.endswith(".mslite"):
        name, version = path.removesuffix(".mslite"), 1
    elif parts[-1] == BUNDLE and len(parts) in (2, 3):
        name, version = parts[0], version_of(parts[1]) or 0 if len(parts) == 3 else 1
    else:
        return None
    return (name, version) if is_name(name) and version else None


def _configured(path: str) -> str:
    """The model that an object configures; "" if it is no configuration."""
    name, _, rest = path.partition("/")
    if rest == CONFIG:
        return name
    return name.removesuffix(".toml") if not rest and name.endswith(".toml") else ""


def _last_config(name: str, before: Before) -> Mapping[str, Any] | None:
    return next((row.config for row in before.values() if row.name == name), None)


_PROFILED = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def _profile(name: str) -> dict[str, str]:
    """The keys of a profile in the files of Amazon's tools; empty if there is none."""
    name = name or os.environ.get("AWS_PROFILE", "") or "default"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.RawConfigParser()
        path = os.environ.get(variable) or os.path.expanduser(f"~/.aws/{file}")
        try:
            parser.read(path, "utf-8")
        except (configparser.Error, OSError, ValueError):
            text = f"credentials: expected a file of Amazon's tools, got another at {path!r}"
            raise GatewayError(503, text) from None
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found


def _setting(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _reason(error: Exception) -> str:
    """An error's first line without the time that the request took, so that equal problems have equal texts; what
    follows are the server's document and obstore's structures."""
    line = re.sub(r" (?:in|after) [0-9.]+(?:ns|µs|ms|s)\b", "", str(error).partition("\n")[0])
    return line.partition(": <?xml")[0][:300]
