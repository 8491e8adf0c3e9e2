"""Models in an OCI registry (Open Container Initiative, Distribution Specification 1.1), beside container images.

    oci://HOST/PATH                  every tag of the repository that is a whole number is a version
    oci://HOST/PATH:TAG              what the tag points to, now and later
    oci://HOST/PATH@sha256:HEX       exactly this

The model's name is the last part of PATH. A model is an image manifest whose one layer of type BUNDLE_TYPE is the
bundle; its config, if it is of type CONFIG_TYPE, is JSON with the keys of `config.toml`. The version of a tag that is
no number is the annotation `org.opencontainers.image.version`, else 1. Manifests are asked for again by their digests,
so one that has not changed is not sent again. Everything is checked against its digest.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from hashlib import sha256
from typing import IO, Annotated, Any, NamedTuple
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import msgspec
from msgspec import Meta, Struct

from edge.gateway.access.addresses import is_loopback
from edge.gateway.errors import GatewayError
from edge.gateway.models.config import parse_config
from edge.gateway.models.names import check_name, shown, version_of
from edge.gateway.sources.catalogue import Before, Fetched, Row, Rows
from edge.gateway.sources.listing import MOST_CONFIG, joined
from edge.gateway.sources.web import Web, fetching, need, origin
from federated.tables import Reader

__all__ = ["BUNDLE_TYPE", "CONFIG_TYPE", "MODEL_TYPE", "Oci", "Reference"]

MODEL_TYPE = "application/vnd.msedge.model.v1"
BUNDLE_TYPE = "application/vnd.msedge.bundle.v1"
CONFIG_TYPE = "application/vnd.msedge.config.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
VERSION_KEY, TITLE_KEY = "org.opencontainers.image.version", "org.opencontainers.image.title"
MOST_VERSIONS, MOST_TAGS = 16, 10_000
"""Versions of a repository that are looked at, the newest ones; tags that it may have."""
MOST_MANIFEST, MOST_TOKEN = 4 << 20, 1 << 16
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256 = r"\Asha256:[0-9a-f]{64}\Z"
_READ = Reader(partial(GatewayError, 503), "", shown)


class Reference(NamedTuple):
    """An address oci://HOST/PATH[:TAG|@DIGEST]; `host` includes the port."""

    host: str
    path: str
    tag: str = ""

    @staticmethod
    def of(text: str) -> Reference:
        """Raises GatewayError (400) for another text."""
        rest = text.removeprefix("oci://")
        host, _, path = rest.partition("/")
        path, at, digest = path.partition("@")
        path, colon, tag = (path, at, digest) if at else path.partition(":")
        marked = re.match(_SHA256, digest) if at else _TAG.fullmatch(tag) if colon else True
        if rest == text or not _HOST.fullmatch(host) or not _PATH.fullmatch(path) or not marked:
            raise GatewayError(400, f"expected oci://HOST/PATH, perhaps with :TAG or @sha256:…, got {shown(text)}")
        return Reference(host, path, tag)

    @property
    def text(self) -> str:
        """The address."""
        mark = "@" if ":" in self.tag else ":"
        return f"oci://{self.host}/{self.path}{mark if self.tag else ''}{self.tag}"


class Descriptor(Struct, frozen=True):
    """What a manifest says of a blob."""

    mediaType: str
    digest: Annotated[str, Meta(pattern=_SHA256, description="sha256: and 64 digits of 0-9 a-f")]
    size: Annotated[int, Meta(ge=0, le=1 << 50)]
    annotations: Mapping[str, str] | None = None


class _Manifest(Struct):
    """An image manifest; unknown keys are ignored."""

    schemaVersion: Annotated[int, Meta(ge=2, le=2, description="2")]
    config: Descriptor
    layers: Annotated[tuple[Descriptor, ...], Meta(max_length=1000)]
    mediaType: str = MANIFEST_TYPE
    annotations: Mapping[str, str] | None = None


class _Tags(Struct):
    tags: Annotated[tuple[str, ...], Meta(max_length=MOST_TAGS)] | None = None


class _Token(Struct):
    token: str = ""
    access_token: str = ""
    expires_in: Annotated[int, Meta(ge=0, le=10**9)] = 60


class Api:
    """The endpoints of one repository, with the registry's ways of authentication."""

    def __init__(self, reference: Reference, web: Web) -> None:
        self.web, self.parts, self._reference = web, web.parts, reference
        host = urlsplit(f"//{reference.host}").hostname or ""
        access = web.credentials.at(reference.host)
        near = host == "localhost" or is_loopback(host)
        scheme = "http" if access.plain or (near and not access.ca) else "https"
        self.root = f"{scheme}://{reference.host}/v2/{reference.path}/"
        self._said, self._until = "", 0.0
        """The header field that the registry accepted last, and until when."""

    @contextlib.contextmanager
    def open(self, url: str, **given: Any) -> Iterator[Any]:
        """A reply, after the authentication that the registry asks for; see `Web.open`."""
        expect = given.pop("expect", (200,))
        home = origin(url) == origin(self.root)
        said = "" if not home else self._said if time.monotonic() < self._until else self._first()
        with self.web.open(url, authorization=said, expect=(*expect, 401), **given) as reply:
            if reply.status != 401:
                yield reply
                return
            challenge = reply.headers.get("WWW-Authenticate", "")
        if hasattr(given.get("data"), "seek"):
            given["data"].seek(0)
        with self.web.open(url, authorization=self._answer(url, challenge), expect=expect, **given) as reply:
            yield reply

    def _first(self) -> str:
        """What is said without a challenge: a token from the credentials. A password waits for what is asked."""
        access = self.web.access(self.root)
        return f"Bearer {access.token}" if access.token else ""

    def _answer(self, url: str, challenge: str) -> str:
        """The header field for a challenge (RFC 9110, section 11.6.1)."""
        access = self.web.access(self.root)
        scheme, _, rest = challenge.partition(" ")
        if origin(url) != origin(self.root):
            return ""
        if scheme.lower() == "basic" and access.user:
            self._said, self._until = access.basic, time.monotonic() + 300
        elif scheme.lower() == "bearer" and not access.token:
            self._said, self._until = self._token(dict(re.findall(r'(\w+)="([^"]*)"', rest)), access.basic)
        else:
            return self._first()
        return self._said

    def _token(self, asked: Mapping[str, str], basic: str) -> tuple[str, float]:
        """A token from the service that a registry names, and until when it is used."""
        realm = urljoin(self.root, asked.get("realm", ""))
        access = self.web.access(self.root)
        at_home = origin(realm) == origin(self.root) or urlsplit(realm).netloc.lower() == access.realm.lower()
        if basic and not at_home:
            place = shown(urlsplit(realm).netloc)
            raise GatewayError(503, f"{self._reference.host} gives tokens at {place}; if the password may be sent"
                               " there, set `realm` in its table of repository.credentials")  # fmt: skip
        query = urlencode([(key, asked[key]) for key in ("service", "scope") if key in asked])
        where = f"{realm}{'&' if urlsplit(realm).query else '?'}{query}"
        raw = self.web.get(where, MOST_TOKEN, authorization=basic)
        found = _decoded(raw, _Token, "the reply of the token service")
        token = found.token or found.access_token
        if not token or not token.isascii() or not token.isprintable():
            raise GatewayError(503, "the reply of the token service: expected a token, got none")
        return f"Bearer {token}", time.monotonic() + max(0, found.expires_in - 10)

    def get(self, path: str, most: int, **given: Any) -> bytes:
        """The whole content at a path of the repository."""
        with self.open(self.root + path, **given) as reply:
            return b"".join(self.parts(reply, self.root + path, most))


class Oci:
    """A catalogue in a repository of an OCI registry; `name`: of the model, instead of the path's last part."""

    def __init__(self, text: str, web: Web, name: str = "") -> None:
        """Raises GatewayError (400) for another address."""
        self._reference = Reference.of(text)
        self.address = self.name = self._reference.text
        self._model = name or check_name(self._reference.path.rpartition("/")[2], repr(text))
        if name:
            self.address = f"{name}={self.address}"
        self.again, self._api = web.timeout, Api(self._reference, web)
        self._seen: dict[str, tuple[str, Row]] = {}
        """By tag, the manifest's digest and its row."""

    def read(self, before: Before) -> Rows:
        """See `Catalogue`."""
        tags = [self._reference.tag] if self._reference.tag else self._versions()
        rows: list[Row] = []
        problems: dict[str, str] = {}
        for tag in tags:
            try:
                row = self._row(tag)
            except GatewayError as error:
                problems[self._model] = joined(problems.get(self._model, ""), f"{tag}: {error}")
                old = self._kept(tag, before)
                rows += [old] if old is not None else []
            else:
                rows.append(row)
        if tags and not rows:
            raise GatewayError(503, problems[self._model], retry_after=self.again)
        return Rows(rows, problems)

    def _kept(self, tag: str, before: Before) -> Row | None:
        """The last good row of a tag."""
        if tag in self._seen:
            return self._seen[tag][1]
        return before.get((self._model, version_of(tag) or 0))

    def _versions(self) -> list[str]:
        """The tags that are versions, the newest first."""
        found: list[str] = []
        path = "tags/list?n=1000"
        while path and len(found) < MOST_TAGS:
            url = urljoin(self._api.root, path)
            need(origin(url) == origin(self._api.root), self._api.root, "the next page at the same registry", "another")
            with self._api.open(url) as reply:
                raw = b"".join(self._api.parts(reply, url, MOST_MANIFEST))
                link = re.search(r'<([^>]*)>\s*;\s*rel="?next', reply.headers.get("Link", ""))
            found += _decoded(raw, _Tags, "list of tags").tags or ()
            path = link[1] if link else ""
        numbers = sorted((int(tag) for tag in set(found) if version_of(tag)), reverse=True)
        return [str(number) for number in numbers[:MOST_VERSIONS]]

    def _row(self, tag: str) -> Row:
        """The row of a tag or digest. Raises GatewayError if there is none, or it is no model."""
        known, old = self._seen.get(tag, ("", None))
        fields = {"Accept": MANIFEST_TYPE, **({"If-None-Match": f'"{known}"'} if known else {})}
        path = f"manifests/{tag}"
        with self._api.open(self._api.root + path, fields=fields, expect=(200, 304)) as reply:
            if reply.status == 304 and old is not None:
                return old
            raw = b"".join(self._api.parts(reply, self._api.root + path, MOST_MANIFEST))
        digest = f"sha256:{sha256(raw).hexdigest()}"
        for said in (reply.headers.get("Docker-Content-Digest"), tag if ":" in tag else None):
            if said is not None and said.startswith("sha256:"):
                need(said == digest, self._api.root + path, f"a manifest {said[:16]}…", f"{digest[:16]}…")
        if digest != known or old is None:
            old = self._made(raw, tag)
            self._seen[tag] = digest, old
        return old

    def _made(self, raw: bytes, tag: str) -> Row:
        manifest = _decoded(raw, _Manifest, "manifest")
        bundles = [layer for layer in manifest.layers if layer.mediaType == BUNDLE_TYPE]
        if len(bundles) != 1:
            kinds = ", ".join(sorted({layer.mediaType for layer in manifest.layers})) or "none"
            raise GatewayError(503, f"expected one layer {BUNDLE_TYPE}, got {kinds}; msedge push stores models so")
        (layer,) = bundles
        said = (manifest.annotations or {}).get(VERSION_KEY, "")
        version = (version_of(tag) if not self._reference.tag else None) or version_of(said) or 1
        digest = layer.digest.removeprefix("sha256:")
        return Row(
            name=self._model, version=version, key=digest, where=layer.digest, sha256=digest, size=layer.size,
            config=self._config(manifest.config),
        )  # fmt: skip

    def _config(self, given: Descriptor) -> Mapping[str, Any] | None:
        """The model's configuration, if its manifest has one."""
        if given.mediaType != CONFIG_TYPE:
            return None
        raw = self._api.get(f"blobs/{given.digest}", MOST_CONFIG)
        need(sha256(raw).hexdigest() == given.digest[7:], self._api.root, "the config's digest", "other contents")
        found: dict[str, Any] = _decoded(raw, dict[str, Any], "config")
        parse_config(found, "config")
        return found

    @contextlib.contextmanager
    def fetch(self, row: Row, start: int) -> Iterator[Fetched]:
        """See `Catalogue`."""
        with fetching(self._api, f"{self._api.root}blobs/{row.where}", start) as got:
            yield got

    def push(self, size: int, digest: str, data: IO[bytes], config: Mapping[str, Any], version: int) -> str:
        """Store a bundle of that size and SHA-256 (hex) under the reference's tag; returns the manifest's digest."""
        layer = Descriptor(BUNDLE_TYPE, f"sha256:{digest}", size, {TITLE_KEY: f"{self._model}.mslite"})
        about = json.dumps(config, sort_keys=True).encode()
        settings = Descriptor(CONFIG_TYPE, f"sha256:{sha256(about).hexdigest()}", len(about))
        self._upload(layer, data)
        self._upload(settings, about)
        manifest = msgspec.json.encode({
            "schemaVersion": 2, "mediaType": MANIFEST_TYPE, "artifactType": MODEL_TYPE,
            "config": _described(settings), "layers": [_described(layer)], "annotations": {VERSION_KEY: str(version)},
        })  # fmt: skip
        where = f"{self._api.root}manifests/{self._reference.tag}"
        with self._api.open(
            where, method="PUT", data=manifest, fields={"Content-Type": MANIFEST_TYPE}, expect=(200, 201)
        ):  # fmt: skip
            return f"sha256:{sha256(manifest).hexdigest()}"

    def _upload(self, blob: Descriptor, data: bytes | IO[bytes]) -> None:
        """Store a blob, unless the registry has it."""
        with self._api.open(f"{self._api.root}blobs/{blob.digest}", method="HEAD", expect=(200, 404)) as reply:
            if reply.status == 200:
                return
        begin = f"{self._api.root}blobs/uploads/"
        with self._api.open(begin, method="POST", data=b"", expect=(202,)) as reply:
            where = urljoin(begin, reply.headers.get("Location", ""))
        query = urlencode({"digest": blob.digest})
        where += f"{'&' if parse_qs(urlsplit(where).query) else '?'}{query}"
        fields = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        with self._api.open(where, method="PUT", data=data, fields=fields, expect=(201, 204)):
            pass


def _described(of: Descriptor) -> dict[str, Any]:
    found = msgspec.to_builtins(of)
    return {key: value for key, value in found.items() if value is not None}


def _decoded(raw: bytes, kind: Any, what: str) -> Any:
    """JSON as values of a type. Raises GatewayError (503)."""
    try:
        return _READ.read(kind, json.loads(raw), f"{what}: ")
    except (ValueError, RecursionError):
        raise GatewayError(503, f"{what}: expected JSON, got other text") from None
