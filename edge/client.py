"""A small client for inference servers with the Open Inference Protocol over HTTP: msedge, Triton, KServe.

    with Client("http://127.0.0.1:8000") as client:
        y = client.infer("digits", {"x": x})["y"]

Needs only NumPy and the standard library. Tensors are sent in binary in both directions; connections are reused.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from math import prod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import numpy as np

from edge.gateway.errors import GatewayError
from edge.gateway.ports import DATATYPES
from lite_runtime.errors import MsedgeError
from lite_runtime.graph import Array, numpy_dtype

if TYPE_CHECKING:
    import ssl

__all__ = ["Client"]

_DATATYPE_OF = {ours: theirs for theirs, ours in DATATYPES.items()}
_LENGTH = "Inference-Header-Content-Length"


class Client:
    """A client of the server at `url`, with one connection; for one thread at a time.

    token: sent as `Authorization: Bearer`. wait: timeout in seconds for connecting, and for every piece of a reply.
    context: the TLS context for https; the default checks certificates against the system's authorities.

    Every method raises GatewayError: with the server's status, text and `retry_after` if it refuses, 503 if there is no
    answer, 504 after `wait`, 502 for a reply that does not follow the protocol.
    """

    def __init__(self, url: str, *, token: str = "", wait: float = 60.0, context: ssl.SSLContext | None = None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
            raise GatewayError(400, f"expected a server's address like http://127.0.0.1:8000, got {url!r}")
        self._url, self._path = url, parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connection = (
            HTTPSConnection(host, port, timeout=wait, context=context)
            if parts.scheme == "https"
            else HTTPConnection(host, port, timeout=wait)
        )
        self.notes: Mapping[str, Any] = {}
        """`parameters` of the latest inference's reply, for example which personal version answered."""

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Array],
        version: str = "",
        device: str = "",
        outputs: Sequence[str] | None = None,
        timeout: float | None = None,
        priority: int = 0,
        confidence: bool = False,
    ) -> dict[str, Array]:
        """Run a model; returns all outputs, or the named ones, by name. Tensors of strings hold `bytes`.

        inputs: arrays by name, with the model's shapes and types; strings as `str` or `bytes`. device: whose personal
        version to use. timeout: deadline in seconds; the server refuses a request that it cannot answer in time (504,
        or 429 at once). priority: 1 is the highest; 0: the server's default. confidence: whether `notes` are to say how
        sure the model is, if its bundle is calibrated. Raises GatewayError if the server refuses,
        for inputs that do not fit the model, and if there is no answer.
        """
        described, parts = [], []
        for name, array in inputs.items():
            datatype, raw = _to_bytes(name, np.asarray(array))
            entry = {"name": name, "shape": np.shape(array), "datatype": datatype}
            described.append(entry | {"parameters": {"binary_data_size": len(raw)}})
            parts.append(raw)
        wishes = {
            "device": device,
            "timeout": None if timeout is None else max(1, round(timeout * 1e6)),
            "priority": priority,
            "confidence": confidence,
            "binary_data_output": outputs is None,
        }
        asked: dict[str, Any] = {"inputs": described, "parameters": {k: v for k, v in wishes.items() if v}}
        if outputs is not None:
            asked["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
        header = json.dumps(asked).encode()
        body = b"".join((header, *parts))
        content = {_LENGTH: str(len(header)), "Content-Type": "application/octet-stream"}
        answer, length = self._call("POST", f"{_of(model, version)}/infer", body, content)
        document = _json(answer if length is None else answer[:length])
        rest = memoryview(answer)[len(answer) if length is None else length :]
        try:
            self.notes = dict(document.get("parameters", {}))
            found = dict(_outputs(document["outputs"], rest))
        except (ArithmeticError, AttributeError, KeyError, MsedgeError, TypeError, ValueError) as error:
            raise GatewayError(502, f"{self._url} answered with invalid outputs: {error!r}") from None
        if missing := [name for name in outputs or () if name not in found]:
            raise GatewayError(502, f"{self._url} answered without {', '.join(missing)}")
        return found

    def metadata(self, model: str = "", version: str = "") -> dict[str, Any]:
        """The metadata of a model: its inputs and outputs; without a model: of the server."""
        document: dict[str, Any] = self._document("GET", _of(model, version) if model else "")
        return document

    def ready(self, model: str | None = None, version: str = "") -> bool:
        """Whether the server, or a model, is ready for requests; False if it does not exist."""
        try:
            self._call("GET", f"{_of(model, version)}/ready" if model else "/health/ready")
        except GatewayError as error:
            if error.status not in (400, 404, 503):
                raise
            return False
        return True

    def models(self) -> list[dict[str, str]]:
        """Every version of every model: `name`, `version`, `state` ("READY", …) and the `reason` for it."""
        index: list[dict[str, str]] = self._document("POST", "/repository/index", list)
        return index

    def load(
        self, model: str, config: Mapping[str, Any] | None = None, files: Mapping[str, bytes] | None = None
    ) -> None:
        """Load or reload a model. config: used instead of the model's own; files: path within the model's folder
        ("1/model.mslite") -> content, used instead of the server's files."""
        wishes: dict[str, str] = {} if config is None else {"config": json.dumps(config)}
        wishes |= {f"file:{path}": base64.b64encode(content).decode() for path, content in (files or {}).items()}
        self._call("POST", f"/repository/models/{quote(model, safe='')}/load", _body(wishes))

    def unload(self, model: str) -> None:
        """Unload a model; its current requests are answered."""
        self._call("POST", f"/repository/models/{quote(model, safe='')}/unload", _body({}))

    def close(self) -> None:
        """Close the connection; the next call opens a new one."""
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _document(self, method: str, path: str, kind: type = dict) -> Any:
        document = _json(self._call(method, path)[0])
        if not isinstance(document, kind):
            raise GatewayError(502, f"expected a JSON {kind.__name__} from {self._url}, got {str(document)[:80]}")
        return document

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, int | None]:
        """The body of a reply with status 200, and the length of its JSON if tensors follow."""
        try:
            response = self._answer(method, f"{self._path}/v2{path}", body, self._headers | dict(headers or {}))
            content = response.read()
        except TimeoutError:
            self.close()
            raise GatewayError(504, f"no answer from {self._url} for {self._connection.timeout} s") from None
        except (HTTPException, OSError) as error:
            self.close()
            raise GatewayError(503, f"no answer from {self._url}: {error!r}; is the server running?") from None
        if response.status != 200:
            raise _refusal(response, content)
        length = response.headers.get(_LENGTH)
        if length is not None and not (length.isascii() and length.isdecimal() and int(length) <= len(content)):
            raise GatewayError(
                502, f"{self._url} sent a reply of {len(content)} bytes whose header says that {length} are JSON"
            )
        return content, None if length is None else int(length)

    def _answer(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> HTTPResponse:
        """The head of the reply. If the server has closed the reused connection, the request is sent once more."""
        kept = self._connection.sock is not None
        try:
            self._connection.request(method, path, body, headers)
            return self._connection.getresponse()
        except ConnectionError:  # also RemoteDisconnected: no part of a reply was received
            self.close()
            if not kept:
                raise
        self._connection.request(method, path, body, headers)
        return self._connection.getresponse()


def _of(model: str, version: str) -> str:
    return f"/models/{quote(model, safe='')}" + (f"/versions/{quote(version, safe='')}" if version else "")


def _body(parameters: Mapping[str, str]) -> bytes:
    return json.dumps({"parameters": parameters} if parameters else {}).encode()


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (RecursionError, ValueError):
        raise GatewayError(502, f"expected JSON from the server, got {content[:80]!r}") from None


def _refusal(response: HTTPResponse, content: bytes) -> GatewayError:
    try:
        text = str(json.loads(content)["error"])
    except (KeyError, RecursionError, TypeError, ValueError):
        text = f"{response.status} {response.reason}: {content[:200].decode(errors='replace')}".strip(": ")
    try:
        after = float(response.headers["Retry-After"])
    except (TypeError, ValueError):
        return GatewayError(response.status, text)
    return GatewayError(response.status, text, retry_after=after)


# -- tensors -----------------------------------------------------------------------------------------------------------


def _to_bytes(name: str, array: Array) -> tuple[str, bytes]:
    """An array's datatype and bytes: little-endian, row-major; strings are each preceded by their length."""
    if array.dtype.kind in "OSU":
        elements = [e.encode() if isinstance(e, str) else e for e in array.ravel().tolist()]
        if others := {type(e).__name__ for e in elements if not isinstance(e, bytes)}:
            raise GatewayError(400, f"input {name!r} holds {', '.join(sorted(others))}; expected str or bytes")
        return "BYTES", b"".join(len(e).to_bytes(4, "little") + e for e in elements)
    if array.dtype.name not in _DATATYPE_OF:
        raise GatewayError(
            400, f"input {name!r} is {array.dtype}, which the protocol does not support; expected one of"
            f" {', '.join(_DATATYPE_OF)}"
        )  # fmt: skip
    return _DATATYPE_OF[array.dtype.name], array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def _outputs(described: Sequence[Mapping[str, Any]], rest: memoryview) -> Iterator[tuple[str, Array]]:
    """Outputs by name; raises ValueError, and other errors for wrong types in the JSON."""
    for entry in described:
        shape, dtype = [int(size) for size in entry["shape"]], numpy_dtype(DATATYPES[entry["datatype"]])
        if min(shape, default=0) < 0:
            raise ValueError(f"shape {shape}")
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is None:
            data = entry["data"]
            if dtype.hasobject:
                data = [text.encode() for text in _flat(data)]
            yield entry["name"], np.array(data, dtype).reshape(shape)
            continue
        if not 0 <= size <= len(rest):
            raise ValueError(f"{size} bytes of {len(rest)} left")
        raw, rest = rest[:size], rest[size:]
        if dtype.hasobject:
            elements = np.array(list(_strings(raw)), object)
        else:
            elements = np.frombuffer(raw, dtype.newbyteorder("<")).astype(dtype)
        if elements.size != prod(shape):
            raise ValueError(f"{elements.size} elements of shape {shape}")
        yield entry["name"], elements.reshape(shape)
    if rest:
        raise ValueError(f"{len(rest)} bytes too many")


def _strings(raw: memoryview) -> Iterator[bytes]:
    """Strings, each preceded by its length in four bytes."""
    while raw:
        length = int.from_bytes(raw[:4], "little")
        if len(raw) < 4 + length:
            raise ValueError(f"a string of {length} bytes, {len(raw) - 4} left")
        yield bytes(raw[4 : 4 + length])
        raw = raw[4 + length :]


def _flat(data: Any) -> Iterator[Any]:
    for element in data:
        if isinstance(element, list):
            yield from _flat(element)
        else:
            yield element
