"""Hostile requests: case i of a seed is the same bytes on every machine.

A case is a list of steps that one client takes: bytes to send, seconds to wait, EOF, RESET or LEAVE.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from tests.fuzz.mutate import mutate
from tests.fuzz.seeds import seed_bundles

__all__ = ["EOF", "FAMILIES", "HIDDEN", "LEAVE", "MODELS", "RESET", "Case", "bombs", "case"]

EOF, RESET, LEAVE = "eof", "reset", "leave"
"""Say no more, but read on; end the connection by a reset; end it in order, without reading."""
HIDDEN = "hidden-behind-another"
"""A path that only a server which splits requests wrongly ever sees."""
MODELS = {
    "scaled": [("x", "FP32", 4)],
    "simple": [("INPUT0", "INT32", 16), ("INPUT1", "INT32", 16)],
    "simple_string": [("INPUT0", "BYTES", 16), ("INPUT1", "BYTES", 16)],
    "numbers": [
        ("BOOL", "BOOL", 3), ("UINT8", "UINT8", 3), ("INT8", "INT8", 3), ("INT64", "INT64", 3), ("FLOAT16", "FP16", 3),
        ("FLOAT", "FP32", 3), ("DOUBLE", "FP64", 3), ("STRING", "BYTES", 3), ("BFLOAT16", "BF16", 3),
    ],
}  # fmt: skip
"""Models that the server has, with their inputs: name, datatype, and size of a row."""
_SIZES = {"BOOL": 1, "UINT8": 1, "INT8": 1, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8, "INT32": 4}

_NUMBERS = (
    *(0, -1, 1, 2, 3, 7, 16, 64, 255, 256, 65536, 2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**62, 2**63 - 1),
    *(2**63, 2**64, 10**30, 10**300, -2, -(2**31), -(2**63), -(2**63) - 1, 0.5, -0.0, 1e-320, 1e38, 1e39, 1e308),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, "", "x", "INT32", "FP32", "BYTES", "BF16", "\0", "é\ud7ff\U0001f600", "a" * 5000, "9" * 400),
    *([], {}, [[]], [[[[[]]]]], [None], [0], [1.5], ["x"], [True], {"a": {}}, {"": None}, *_NUMBERS),
)
_TEXTS = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"1" * 400, b"0." + b"1" * 400, b"01", b"+1", b".5",
      b"1."),
    *(b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\\ud800", b"\\u0000", b"\\x", b"\0",
      b'"'),
    *(b"[" * 2000, b'{"data":' * 2000, b"[[1],[2" * 300, b',"data":[1,2,3]', b',"inputs":[]', b"//", b"/*", b"'", b"]",
      b"}"),
)  # fmt: skip


def _value(rng: Random) -> Any:
    return deepcopy(rng.choice(_VALUES))


@dataclass(frozen=True)
class Case:
    """steps: what the client does. replies: how many it looks for before it says no more; 0: none is awaited. silent:
    it waits for the server to end the connection. split: the request hides another one, which must not be answered.
    family: where it is from. headless: replies have no body (HEAD)."""

    steps: Sequence[bytes | float | str]
    replies: int = 1
    silent: bool = False
    split: bool = False
    headless: bool = False
    family: str = ""

    @property
    def secured(self) -> bool:
        """Whether it goes to the server that wants tokens."""
        return self.family == "tokens"


def case(seed: int, index: int) -> Case:
    """The case."""
    rng = Random(f"{seed}:{index}")
    names, weights = zip(*((name, weight) for name, (weight, _) in FAMILIES.items()), strict=True)
    name = rng.choices(names, weights)[0]
    made = FAMILIES[name][1](rng)
    return Case(**{**made.__dict__, "family": name})


# -- valid requests ----------------------------------------------------------------------------------------------------


def _infer(model: str, rest: str = "") -> str:
    return f"/v2/models/{model}{rest}/infer"


def _ask(path: str, body: bytes, fields: Sequence[tuple[str, str]] = (), method: str = "POST") -> bytes:
    told = [("Host", "127.0.0.1"), ("Content-Length", str(len(body))), *fields]
    lines = "".join(f"{name}: {value}\r\n" for name, value in told)
    return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogateescape") + body


def _document(rng: Random, model: str, binary: bool) -> tuple[dict[str, Any], bytes]:
    rows = rng.choice((1, 1, 2, 3, 17))
    inputs: list[dict[str, Any]] = []
    tail = b""
    for name, datatype, size in MODELS[model]:
        tensor: dict[str, Any] = {"name": name, "shape": [rows, size], "datatype": datatype}
        count = rows * size
        if binary or datatype == "BF16":
            data = b"\1\0\0\0" b"7" * count if datatype == "BYTES" else bytes(count * _SIZES[datatype])
            tensor["parameters"] = {"binary_data_size": len(data)}
            tail += data
        elif datatype == "BYTES":
            tensor["data"] = ["7"] * count
        else:
            tensor["data"] = [True] * count if datatype == "BOOL" else [rng.randrange(100) for _ in range(count)]
        inputs.append(tensor)
    document: dict[str, Any] = {"inputs": inputs}
    if rng.random() < 0.4:
        document["id"] = str(rng.randrange(1000))
    if rng.random() < 0.4 or model == "numbers":
        document["parameters"] = {"binary_data_output": model == "numbers" or rng.random() < 0.5}
    return document, tail


def _valid(rng: Random, model: str = "") -> bytes:
    model = model or rng.choice(list(MODELS))
    document, tail = _document(rng, model, rng.random() < 0.5)
    head = json.dumps(document).encode()
    fields = [("Inference-Header-Content-Length", str(len(head)))] if tail else []
    return _ask(_infer(model), head + tail, fields)


# -- bodies ------------------------------------------------------------------------------------------------------------


def _bodies(rng: Random) -> Case:
    """Bodies of inferences: JSON damaged as a value, as text, or only in its lengths."""
    if rng.random() < 0.004:
        return rng.choice(bombs())
    model = rng.choice(list(MODELS))
    document, tail = _document(rng, model, rng.random() < 0.6)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        _spoil(rng, document)
    if rng.random() < 0.3:
        document["parameters"] = _odd_words(rng)
    head = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.3:
        head = _spoil_text(rng, head)
    tail = _spoil_tail(rng, tail) if rng.random() < 0.25 else tail
    fields = []
    if tail or rng.random() < 0.1:
        said = len(head) if rng.random() < 0.8 else rng.choice((*_NUMBERS, len(head) + rng.randrange(-9, 9), "", "1 2",
                                                                "0x9"))
        fields = [("Inference-Header-Content-Length", str(said))]
    return Case([_ask(_infer(model, rng.choice(("", "", "", "/versions/1", "/versions/7"))), head + tail, fields)])


def _spoil(rng: Random, document: Any) -> None:
    """Change one value of a JSON document, anywhere in it."""
    holder, key = _anywhere(rng, document)
    if holder is None:
        return
    way = rng.randrange(5)
    if way == 0 and isinstance(holder, dict):
        del holder[key]
    elif way == 1 and isinstance(holder, list):
        holder.extend(holder[:50])
    elif way == 2 and isinstance(holder[key], int | float):
        holder[key] = holder[key] + rng.choice((1, -1, 0.5, 2**32, 2**63))
    elif way == 3 and isinstance(holder, dict):
        holder[rng.choice(("data", "shape", "name", "parameters", "inputs", "outputs", "datatype"))] = _value(rng)
    else:
        holder[key] = _value(rng)


def _anywhere(rng: Random, value: Any) -> tuple[Any, Any]:
    holder, key = None, None
    while isinstance(value, dict | list) and value and (holder is None or rng.random() < 0.75):
        holder = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
    return holder, key


def _odd_words(rng: Random) -> dict[str, Any]:
    names = ("priority", "timeout", "signature", "device", "sequence_id", "binary_data_output", "shared_memory_region")
    return {name: _value(rng) for name in rng.sample(names, rng.randrange(1, 4))}


def _spoil_text(rng: Random, text: bytes) -> bytes:
    made = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(made) + 1)
        way = rng.randrange(5)
        if way == 0:
            made[at:at] = rng.choice(_TEXTS)
        elif way == 1:
            del made[at : at + rng.choice((1, 2, 9, 1000))]
        elif way == 2 and at < len(made):
            made[at] = rng.randrange(256)
        elif way == 3:
            made[at:at] = made[at : at + rng.choice((1, 20, 400))] * rng.choice((1, 2, 30))
        else:
            made[at : at + rng.randrange(4)] = rng.choice(_TEXTS)
    return bytes(made)


def _spoil_tail(rng: Random, tail: bytes) -> bytes:
    way = rng.randrange(4)
    if way == 0:
        return tail[: rng.randrange(len(tail) + 1)]
    if way == 1:
        return tail + rng.randbytes(rng.choice((1, 3, 4, 100)))
    if way == 2:  # lengths of BYTES, and every pattern of bits as a number
        return rng.randbytes(len(tail))
    return bytes(rng.choice((0, 1, 255)) for _ in tail)


@cache
def bombs() -> list[Case]:
    """Large bodies."""
    start = b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":'
    texts = [
        start + b"[" * 1_000_000,
        start + b"[" * 900 + b"]" * 900 + b"}]}",
        b"[" * 100_000 + b"]" * 100_000,
        start + b"[" + b"[]," * 700_000 + b"[]]}]}",
        start + b"[" + b"[]," * 170_000 + b"[]]}]}",
        b'{"inputs":[' + b'{"data":[1]},' * 170_000 + b"0]}",
        b'{"inputs":[' + b'{"data":[' + b"1," * 20 + b"1]}," * 50_000 + b"0]}",
        start + b"[" + b"1," * 2_000_000 + b"1]}]}",
        start + b"[" + b"1e5," * 1_000_000 + b"1]}]}",
        start + b"[" + b"9" * 2_000_000 + b"]}]}",
        b'{"id":"' + b"a" * 4_000_000 + b'"}',
        b'{"parameters":{' + b",".join(b'"k%d":1' % i for i in range(400_000)) + b"}}",
        b'{"inputs":[' + b"{}," * 1_000_000 + b"{}]}",
        b'"' + b"\\u0041" * 500_000,
    ]
    return [Case([_ask(_infer("scaled"), text)], family="bodies") for text in texts]


# -- heads -------------------------------------------------------------------------------------------------------------

_AMBIGUOUS = (
    b"Content-Length: 3\r\nContent-Length: 40\r\n",
    b"Content-Length: 3, 40\r\n",
    b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
    b"Content-Length: +3\r\n",
    b"Content-Length: 0x3\r\n",
    b"Content-Length: 3_0\r\n",
    b"Content-Length: -3\r\n",
    b"Content-Length : 3\r\n",
    b"Content-Length: 3\r\n 0\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding: chunked, identity\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"Transfer-Encoding: \0chunked\r\n",
    b"X: a\rContent-Length: 3\r\n",
    b"X: a\0\r\nContent-Length: 40\r\n",
    b"\xffContent-Length: 3\r\n",
    b" Content-Length: 3\r\n",
    b"Content-Length: \xb2\r\n",
    b"Content-Length: 99999999999999999999999\r\n",
)


def _smuggled(rng: Random) -> Case:
    """Heads that two parsers would read differently, followed by another request."""
    lines = list(rng.sample([b"Host: a\r\n", rng.choice(_AMBIGUOUS), b"X-A: b\r\n"], 3))
    behind = rng.choice((b"", b"0\r\n\r\n", b"3\r\nabc\r\n0\r\n\r\n", b"{}\n", b"\r\n"))
    hidden = f"GET /{HIDDEN} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    return Case([b"POST /v2/models/scaled/infer HTTP/1.1\r\n" + b"".join(lines) + b"\r\n" + behind + hidden],
                split=True)


_CHUNKS = (
    *(b"ffffffffffffffffff\r\n{}", b"-1\r\n{}", b"0x2\r\n{}\r\n0\r\n\r\n", b"2\r\n{}", b"2\r\n{}\r\n",
      b"2\r\n{}XX0\r\n\r\n"),
    *(b"2 \r\n{}\r\n0\r\n\r\n", b"2;a=b\r\n{}\r\n0\r\n\r\n", b"2;" + b"a" * 30000 + b"\r\n{}\r\n0\r\n\r\n",
      b"\r\n\r\n"),
    *(b"2\n{}\n0\n\n", b"7fffffffffffffff\r\n{}", b"2\r\n{}\r\n0\r\nX: y\r\n\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
      b"zz\r\n"),
    *(b"2\r\n{}\r\n0\r\n" + b"X: " + b"y" * 40000 + b"\r\n\r\n", b"2\r\n{}\r\n00000000000000000000\r\n\r\n"),
    *(b"".join(b"1\r\n%c\r\n" % c for c in b'{"inputs":[]}') * 40 + b"0\r\n\r\n",),
)  # fmt: skip


def _chunked(rng: Random) -> Case:
    """Chunks with wrong lengths."""
    head = b"POST /v2/models/scaled/infer HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = rng.choice(_CHUNKS)
    return Case([head + (_spoil_text(rng, chunks) if rng.random() < 0.5 else chunks)])


def _heads(rng: Random) -> Case:
    """Heads that are unusual, long, numerous, or damaged byte by byte."""
    data = _valid(rng)
    end = data.index(b"\r\n\r\n")
    way = rng.randrange(7)
    if way == 0:
        return Case([_spoil_text(rng, data[:end]) + data[end:]])
    if way == 1:
        odd = b"".join(b"X-%d: %s\r\n" % (i, b"y" * rng.choice((1, 80))) for i in range(rng.choice((1, 63, 64, 65, 400,
                                                                                                    3000))))
        return Case([data[: end + 2] + odd + data[end + 2 :]])
    if way == 2:
        return Case([data[: end + 2] + b"X: " + b"y" * rng.choice((8000, 8190, 8191, 20000, 200000)) + data[end:]])
    if way == 3:
        version = rng.choice((b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.2", b"HTTP/9999", b"http/1.1", b"",
                              b"\xff"))
        return Case([data.replace(b"HTTP/1.1", version, 1)])
    if way == 4:
        name = rng.choice(("Connection", "Expect", "TE", "Trailer", "Host", "Accept-Encoding", "X-Request-ID", "Cookie",
                           "Content-Type", "Origin", "traceparent", "tracestate", "X-Msedge-Label", "X-Msedge-Device",
                           "Range", "Authorization", "X-Forwarded-For", "Accept"))  # fmt: skip
        value = rng.choice((b"", b"100-continue", b"close", b"keep-alive, close", b"x" * 500, b"\xff\xfe", b"\t",
                            b"gzip",
                            b"deflate", b"*", b"canary", b"../..", b"00-" + b"0" * 32 + b"-0-0", b"image/png", b"null",
                            b"image/", b"audio/wav"))  # fmt: skip
        return Case([data[: end + 2] + name.encode() + b": " + value + b"\r\n" + data[end + 2 :]])
    if way == 5:
        return Case([data.replace(b"\r\n", b"\n", rng.choice((1, 3, -1)))])
    return Case([b"\r\n" * rng.randrange(1, 4) + data])


# -- everything else ---------------------------------------------------------------------------------------------------


def _compressed(rng: Random) -> Case:
    """Compressed streams that are cut, damaged, doubled, mislabelled or decompression bombs."""
    plain = rng.choice((b"{}", json.dumps(_document(rng, "scaled", False)[0]).encode(),
                        bytes(rng.choice((10**5, 3 * 10**6)))))
    coding = rng.choice(("gzip", "deflate", "x-gzip", "gzip", "identity", "br", "zstd", "gzip, gzip", "", "\t", "GZIP"))
    data = gzip.compress(plain, mtime=0) if "gzip" in coding.lower() else zlib.compress(plain)
    if rng.random() < 0.1:
        data = gzip.compress(gzip.compress(bytes(10**6), mtime=0), mtime=0)
    way = rng.randrange(5)
    if way == 0:
        data = data[: rng.randrange(len(data))]
    elif way == 1:
        data = data + rng.choice((b"x", data, b"\0" * 50))
    elif way == 2:
        data = _spoil_text(rng, data)
    return Case([_ask(_infer("scaled"), data, [("Content-Encoding", coding)])])


_NAMES = (
    *("..", ".", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a%00b", "%2f", "sc%2faled", "scaled%00", "scaled/",
      "scaled//"),
    *("%ff%fe", "%c3%28", "%E2%80%AE", "\u00e9", "\U0001f600", "a" * 300, "a" * 9000, "a" * 70000, "scaled%",
      "scaled%zz"),
    *("%5c..%5c", "C:", "con", "-x", ".hidden", "scaled;x=1", "scaled?x", "scaled#x", "%0d%0aX:%20y", "\t", "*", "",
      "~root"),
    *("scaled/versions/-1", "scaled/versions/1e9", "scaled/versions/" + "9" * 40, "scaled/versions/..",
      "scaled/versions/"),
    *("stats", "scaled/versions/%00", "scaled/versions/canary", "{name}", "%25%2e", "scaled/../simple",
      "scaled\\..\\x"),
)
_ENDS = ("", "/infer", "/ready", "/config", "/stats", "/versions/1/infer", "/versions/1/stats", "/nothing")


def _paths(rng: Random) -> Case:
    """Names with a special meaning for a file system or another parser."""
    name = rng.choice(_NAMES)
    if rng.random() < 0.2:
        name += rng.choice(_NAMES)
    if rng.random() < 0.25:
        path = f"/v2/repository/models/{name}/{rng.choice(('load', 'unload', 'x'))}"
        return Case([_ask(path, b"{}")])
    prefix = rng.choice(("/v2/models/",) * 6 + ("//v2/models/", "http://a/v2/models/", "/v2/./models/", "v2/models/"))
    end = rng.choice(_ENDS)
    if end.endswith("infer"):
        return Case([_ask(prefix + name + end, json.dumps(_document(rng, "scaled", False)[0]).encode())])
    return Case([_ask(prefix + name + end, b"", method="GET")])


_PLACES = ("/", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/scaled", "/v2/models/scaled/infer",
           "/metrics",
           "/v2/models/scaled/ready", "/v2/models/stats", "/v2/repository/index", "/openapi.json", "/docs", "/status",
           "/status.json", "/v2/repository/models/scaled2/load", "*", "/favicon.ico", "/v2/")  # fmt: skip


def _methods(rng: Random) -> Case:
    """Methods, places and bodies that do not go together."""
    method = rng.choice(("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "HEAD", "PROPFIND",
                         "get",
                         "BREW", "PRI", "G" * 300, "G\0T", ""))  # fmt: skip
    body = rng.choice((b"", b"{}", b"[]", b"null", b"\xff", b'{"ready": "yes"}', b"x" * 5000, b'{"ready":true}'))
    fields = rng.choice(([], [("Content-Type", "text/plain")], [("Origin", "https://evil.example")],
                         [("Accept", "application/openmetrics-text; version=" + "9" * 50)]))  # fmt: skip
    return Case([_ask(rng.choice(_PLACES), body, fields, method)], headless=method == "HEAD")


@cache
def _bundles() -> list[bytes]:
    return [data for data in seed_bundles() if len(data) < 20000]


def _management(rng: Random) -> Case:
    """Loading and unloading of one model, by many at once, with files and configurations of all sorts."""
    name, way = rng.choice(("victim", "victim", "victim", "fresh", "nobody", "dropped")), rng.randrange(8)
    if way == 0:
        return Case([_ask(f"/v2/repository/models/{name}/unload",
                          rng.choice((b"", b"{}", b'{"parameters":{"unload_dependents":true}}')))])
    if way == 1:
        return Case([_ask("/v2/repository/index", rng.choice((b"", b"{}", b'{"ready":true}', b'{"ready":1}', b"[")))])
    if way == 2:
        return Case([_ask(_infer(name), json.dumps(_document(rng, "scaled", False)[0]).encode())])
    parameters: dict[str, Any] = {}
    if way >= 5:
        data = rng.choice(_bundles())
        if rng.random() < 0.8:
            data = mutate(rng, _bundles()) if rng.random() < 0.5 else _spoil_text(rng, data)
        text = base64.b64encode(data).decode()
        path = rng.choice(("1/model.mslite",) * 5 + ("model.mslite", "2/model.mslite", "../x", "/etc/passwd",
                                                     "1/../../x", "", "a\0b"))
        parameters[f"file:{path}"] = text if rng.random() < 0.9 else rng.choice((text[:-1], text + "!", "", None, 5,
                                                                                 ["a"]))
    if way in (3, 4, 5):
        config = rng.choice(({}, {"max_batch": 4}, {"versions": {"latest": 1}}, {"queue_rows": -1},
                             {"labels": {"canary": 1}},
                             {"split": {"1": 1.0}}, {"shadow": {"version": 1, "fraction": 2}}, {"nonsense": 1}, [],
                             "x"))  # fmt: skip
        if isinstance(config, dict):
            _spoil(rng, config)
        text = json.dumps(config)
        parameters["config"] = rng.choice((text, text, text, text[:-1], config, _value(rng)))
    body = json.dumps({"parameters": parameters}).encode("utf-8", "surrogatepass")
    return Case([_ask(f"/v2/repository/models/{name}/load", body)])


def _tokens(rng: Random) -> Case:
    """Rubbish where a token should be."""
    word = rng.choice(("", "Bearer", "Bearer ", "Bearer x", "Bearer msedge_", "Bearer msedge_a_b",
                       "Bearer " + "y" * 7000,
                       "Basic YTpi", "bearer msedge_" + "0" * 30, "Bearer \xff\xfe", "Bearer msedge_a_" + "é",
                       "a" * 8000,
                       "Bearer  msedge__", "Bearer msedge_a_b_c_d", "Negotiate", "Bearer \t"))  # fmt: skip
    place = rng.choice((_infer("scaled"), "/metrics", "/v2/models/scaled", "/v2/repository/models/scaled/unload",
                        "/status.json"))
    method = "POST" if place.endswith(("infer", "unload")) else "GET"
    fields = [("Authorization", word)] * rng.choice((1, 1, 1, 2))
    return Case([_ask(place, b"{}" if method == "POST" else b"", fields, method)])


_HELLO = bytes.fromhex(
    "16030100a5010000a10303" + "11" * 32 + "20" + "22" * 32 + "0004c02bc02f01000054" + "00" * 80
)


def _protocols(rng: Random) -> Case:
    """Other protocols: websockets, TLS, HTTP/2, rubbish."""
    upgrade = [("Connection", "Upgrade"), ("Upgrade", rng.choice(("websocket", "h2c", "x"))),
               ("Sec-WebSocket-Version", "13"),
               ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
               ("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA")]  # fmt: skip
    place = rng.choice(("/v2/health/live", "/v2/models/scaled/infer", "/nothing", "/status"))
    return Case([rng.choice((
        _HELLO, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(60), rng.randbytes(rng.choice((1, 50, 3000))),
        b"\0" * 20000,
        b"SSH-2.0-x\r\n", b"EHLO a\r\n", b"GET /\r\n", b"\r\n\r\n\r\n\r\n",
        _ask(place, rng.choice((b"", b"{}", rng.randbytes(400))), upgrade,
             rng.choice(("GET", "POST"))) + rng.randbytes(100),
    ))])  # fmt: skip


def _pipelined(rng: Random) -> Case:
    """Several requests at once, good ones and bad ones, cut anywhere."""
    wrong = _ask(_infer("scaled"), b"{")
    many = rng.choice((2, 3, 5, 60))
    parts = [rng.choice((_valid(rng), _valid(rng), wrong, _ask("/v2/health/live", b"",
                                                               method="GET"))) for _ in range(many)]
    if rng.random() < 0.5:
        parts.insert(rng.randrange(len(parts)), rng.choice((b"\0\0\0", b"rubbish\r\n\r\n", b"{}", b"\r\n",
                                                            rng.randbytes(30))))
    data = b"".join(parts)
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(6)))
    steps: list[bytes | float | str] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        steps += [data[begin:end], rng.choice((0.0, 0.002))]
    return Case(steps, replies=len(parts))


def _large(rng: Random) -> bytes:
    rows = rng.choice((1, 100, 5000, 40000))
    head = json.dumps({"inputs": [{"name": "x", "shape": [rows, 4], "datatype": "FP32",
                                   "parameters": {"binary_data_size": rows * 16}}]}).encode()  # fmt: skip
    return _ask(_infer("scaled"), head + bytes(rows * 16), [("Inference-Header-Content-Length", str(len(head)))])


def _leaving(rng: Random) -> Case:
    """Clients that go away, say no more, or do not read: at any point of a request."""
    data = _large(rng) if rng.random() < 0.3 else _valid(rng)
    if rng.random() < 0.3:  # aiohttp's, not the fast lane's
        data = data.replace(b"\r\n", b"\r\nTE: trailers\r\n", 1)
    data *= rng.choice((1, 1, 1, 4))
    end = rng.choice((len(data), rng.randrange(len(data)), rng.randrange(len(data))))
    steps: list[bytes | float | str] = [data[:end], rng.choice((0.0, 0.0, 0.005)), rng.choice((EOF, RESET, LEAVE))]
    return Case(steps, replies=0)


def _silent(rng: Random) -> Case:
    """Part of a request, then nothing: the server must end it."""
    data = rng.choice((_valid(rng), _large(rng), _ask("/v2/repository/index", b"{}"),
                       b"GET /v2 HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (i, b"y" * 6000) for i in range(4)),
                       _ask("/v2/health/live", b"", method="GET") + b"GET /v2"))  # fmt: skip
    if rng.random() < 0.3:
        data = data.replace(b"\r\n", b"\r\nTE: trailers\r\n", 1)
    return Case([data[: rng.choice((0, 1, rng.randrange(len(data)), len(data) - 1))]], silent=True)


def _slow(rng: Random) -> Case:
    """Send a few bytes at a time."""
    data = _valid(rng, "scaled")
    many = rng.choice((5, 40))
    cuts = sorted(rng.randrange(len(data)) for _ in range(many))
    steps: list[bytes | float | str] = []
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        steps += [data[begin:end], 0.01]
    return Case(steps)


def _deaf(rng: Random) -> Case:
    """Asks for much and reads nothing."""
    if rng.random() < 0.5:
        return Case([_ask("/openapi.json", b"", method="GET") * 300], replies=0, silent=True)
    return Case([_large(rng) * 4, _large(rng) * 40], replies=0, silent=True)


FAMILIES: dict[str, tuple[float, Callable[[Random], Case]]] = {
    "bodies": (40, _bodies),
    "heads": (8, _heads),
    "smuggled": (6, _smuggled),
    "chunked": (4, _chunked),
    "compressed": (6, _compressed),
    "paths": (8, _paths),
    "methods": (6, _methods),
    "management": (3, _management),
    "tokens": (3, _tokens),
    "protocols": (4, _protocols),
    "pipelined": (4, _pipelined),
    "leaving": (6, _leaving),
    "slow": (1, _slow),
    "silent": (0.8, _silent),
    "deaf": (0.2, _deaf),
}
"""Kinds of cases, with how often they come."""
