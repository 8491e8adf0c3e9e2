"""HTTP by hand: bytes out, bytes in."""

from __future__ import annotations

import json
import socket
from typing import Any, NamedTuple

import numpy as np


class Got(NamedTuple):
    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        """The sentence of an error; every error has one, and nothing else."""
        found = json.loads(self.body)
        assert list(found) == ["error"] and isinstance(found["error"], str), found
        assert self.fields["content-type"].startswith("application/json")
        return str(found["error"])


class Raw:
    """A connection. `ask` sends bytes and reads one reply; `read` reads the next one."""

    def __init__(self, port: int, timeout: float = 300.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._rest = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def ask(self, data: bytes) -> Got:
        self.send(data)
        return self.read()

    def read(self) -> Got:
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (text.partition(":") for text in lines)}
        length = int(fields.get("content-length", "0"))
        while len(self._rest) < length:
            self._more()
        body, self._rest = self._rest[:length], self._rest[length:]
        return Got(int(line.split()[1]), fields, body)

    def closed(self) -> bool:
        """Whether the server closes now, with nothing further said."""
        try:
            return not self._rest and self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the server closed after {self._rest!r}")
        self._rest += data


def request(
    path: str,
    body: bytes | Any = b"",
    fields: dict[str, str] | None = None,
    method: str = "POST",
    length: str | None = None,
) -> bytes:
    """A request; what is not bytes goes as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    told = {"Host": "127.0.0.1", "Content-Length": length if length is not None else str(len(data)), **(fields or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + data


def scaled_request(x: np.ndarray, *, model: str = "scaled", binary: bool = True, fields: dict[str, str] | None = None,
                   **parameters: Any) -> bytes:  # fmt: skip
    """Ask `live.scaled` for an answer."""
    tensor: dict[str, Any] = {"name": "x", "shape": list(x.shape), "datatype": "FP32"}
    if not binary:
        tensor["data"] = x.ravel().tolist()
        return request(f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": parameters}, fields)
    tensor["parameters"] = {"binary_data_size": x.nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    told = {"Inference-Header-Content-Length": str(len(head)), **(fields or {})}
    return request(f"/v2/models/{model}/infer", head + x.tobytes(), told)


def answer(got: Got) -> np.ndarray:
    """The output of `live.scaled`, as JSON has it."""
    assert got.status == 200, got
    (output,) = json.loads(got.body)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"])
