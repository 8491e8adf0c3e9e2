"""Signed bundles: the same contents and digest; what a signature covers; which keys count."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lite_runtime
from lite_runtime import bundle
from lite_runtime.bundle import keys, signing
from lite_runtime.bundle.keys import PublicKey, TrustError
from lite_runtime.bundle.layout import ENTRY, HEADER, SIGNATURE
from lite_runtime.bundle.signatures import Signature, signatures_of
from lite_runtime.bundle.signing import with_signatures
from lite_runtime.errors import BundleError
from lite_runtime.graph import Graph, Node, Value

RNG = np.random.default_rng(3)
NOW = time.time()


def written(outputs: int = 4, extra: dict[str, bytes] | None = None) -> bytes:
    """A bundle of y = x @ w; from 40,000 outputs on its weights begin at a page."""
    weights = RNG.standard_normal((8, outputs)).astype(np.float32)
    graph = Graph((Value("x", "float32", ("n", 8)),), (Value("y", "float32", ("n", outputs)),),
                  (Node("MatMul", ("x", "w"), ("y",)),), {"w": weights})  # fmt: skip
    x = RNG.standard_normal((2, 8)).astype(np.float32)
    golden = {"predict": ({"x": x}, {"y": x @ weights})} if outputs % 2 else {}
    return bundle.write(None, {"predict": graph}, golden=golden, extra=extra or {}, metadata={"n": outputs})


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PublicKey]:
    return made(tmp_path_factory.mktemp("keys"), "release")


def made(folder: Path, name: str, expires: float = math.inf) -> tuple[Path, PublicKey]:
    """The file of a new private key, and the public one."""
    secret, shown = signing.new_key(name, expires)
    (folder / f"{name}.key").write_bytes(secret)
    (folder / f"{name}.pub").write_bytes(shown)
    return folder / f"{name}.key", keys.public_key(folder / f"{name}.pub")


def refusal(data: bytes, *known: PublicKey, now: float = NOW, model: str = "", version: int = 0) -> str:
    """Why a bundle is refused; "" if it is not."""
    try:
        keys.check(bundle.opened(data), known, now, model, version)
    except TrustError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("extra", [{}, {"a/section": b"x" * 77}])
@pytest.mark.parametrize("outputs", [1, 4, 7, 40_000])
def test_signing_changes_nothing_else(pair: tuple[Path, PublicKey], outputs: int, extra: dict[str, bytes]) -> None:
    private, public = pair
    plain = written(outputs, extra)
    signed = signing.signed(plain, private)
    one, other = bundle.read(plain, thorough=True), bundle.read(signed, thorough=True)
    assert signed != plain and other.digest == one.digest
    assert {name: bytes(one.section(name)) for name in one.sections} == {
        name: bytes(other.section(name)) for name in other.sections if name != SIGNATURE
    }
    assert with_signatures(signed, ()) == plain == with_signatures(plain, ())
    assert signing.signed(signed, private) == signed  # Ed25519 is deterministic
    x = RNG.standard_normal((3, 8)).astype(np.float32)
    answers = [lite_runtime.load(data).run({"x": x})["y"] for data in (plain, signed)]
    np.testing.assert_array_equal(*answers)
    assert refusal(signed, public) == "" and "without a signature" in refusal(plain, public)


def test_another_key(pair: tuple[Path, PublicKey], tmp_path: Path) -> None:
    private, public = pair
    other_private, other = made(tmp_path, "other")
    signed = signing.signed(written(), private)
    assert keys.short(public.key) in refusal(signed, other) and "not trusted" in refusal(signed, other)
    both = signing.signed(signed, other_private)
    assert len(signatures_of(bundle.opened(both))) == 2
    assert refusal(both, other) == refusal(both, public) == refusal(both, other, public) == ""
    assert keys.check(bundle.opened(both), [other, public], NOW).name == "release"  # the first signature that counts
    assert "not trusted" in refusal(both)


def test_a_key_that_expired(tmp_path: Path) -> None:
    day = datetime(2030, 5, 1, tzinfo=UTC).timestamp()
    private, public = made(tmp_path, "old", day)
    assert public.expires == day
    signed = signing.signed(written(), private)
    assert refusal(signed, public, now=day - 1) == ""
    assert "expired at 2030-05-01" in refusal(signed, public, now=day)


def test_a_signature_for_one_model_and_version(pair: tuple[Path, PublicKey]) -> None:
    private, public = pair
    signed = signing.signed(written(), private, model="digits", version=3)
    assert refusal(signed, public, model="digits", version=3) == refusal(signed, public) == ""
    assert "for 'digits' version 3 alone" in refusal(signed, public, model="faces", version=3)
    assert "for 'digits' version 3 alone" in refusal(signed, public, model="digits", version=2)
    (one,) = signatures_of(bundle.opened(signed))
    for loosened in (one._replace(model=""), one._replace(version=0), one._replace(model="digits3", version=0)):
        assert "not of this bundle" in refusal(with_signatures(signed, [loosened]), public)


def test_a_signature_of_another_bundle(pair: tuple[Path, PublicKey]) -> None:
    private, public = pair
    one, other = signing.signed(written(), private), written()
    moved = with_signatures(other, signatures_of(bundle.opened(one)))
    assert bundle.read(moved) and "not of this bundle" in refusal(moved, public)


def test_every_byte_is_covered(pair: tuple[Path, PublicKey]) -> None:
    """A file with a changed byte cannot be read, or is refused; but for the zero bytes between sections, none are
    free."""
    private, public = pair
    signed = signing.signed(written(1, {"extra": b"abc"}), private)
    for at in range(0, len(signed), 5):
        changed = bytearray(signed)
        changed[at] ^= 1 << at % 8
        try:
            assert refusal(bytes(changed), public)
        except BundleError:
            continue


def test_a_table_written_anew_is_covered(pair: tuple[Path, PublicKey]) -> None:
    """Somebody who changes the contents and all digests, so that the file can be read."""
    private, public = pair
    signed = signing.signed(written(4, {"extra": b"abc"}), private)
    held = bundle.read(signed)
    (one,) = signatures_of(bundle.opened(signed))

    def again(**changes: object) -> bytes:
        given = {
            "signatures": held.signatures, "provenance": held.provenance, "metadata": held.metadata,
            "golden": held.golden, "extra": {"extra": b"abc"},
        } | changes  # fmt: skip
        return with_signatures(bundle.write(None, **given), [one])  # type: ignore[arg-type]

    assert refusal(again(), public) == ""
    graph = held.signatures["predict"]
    heavier = graph.replace(constants={"w": graph.constants["w"] + 1})
    for changes in (
        {"metadata": {"n": 5}}, {"provenance": {"x": 1}}, {"extra": {"extra": b"abd"}}, {"extra": {}},
        {"signatures": {"predict": heavier}}, {"signatures": {"predict": graph, "other": graph}},
    ):  # fmt: skip
        assert "not of this bundle" in refusal(again(**changes), public), changes


def test_needed_versions_and_flags_are_covered(pair: tuple[Path, PublicKey]) -> None:
    """They decide whether and how a reader reads."""
    from lite_runtime.bundle.layout import BUNDLE, cut, rows_of
    from lite_runtime.bundle.writing import laid_out

    private, public = pair
    file = bundle.opened(signing.signed(written(4, {"extra": b"abc"}), private))
    rows, needs = rows_of(file.data)
    contents = [cut(file.data, file.sections[row.name]) for row in rows]
    assert refusal(laid_out(rows, contents, needs, BUNDLE), public) == ""
    assert "not of this" in refusal(laid_out(rows, contents, needs + 1, BUNDLE), public)
    newer = [row._replace(needs=row.needs + 1) if row.name == "extra" else row for row in rows]
    assert "not of this" in refusal(laid_out(newer, contents, needs, BUNDLE), public)
    assert "not of this" in refusal(laid_out(rows[1:], contents[1:], needs, BUNDLE), public)
    turned = [rows[1], rows[0], *rows[2:]], [contents[1], contents[0], *contents[2:]]
    assert "not of this" in refusal(laid_out(*turned, needs, BUNDLE), public)


def test_a_model_is_loaded_only_with_a_trusted_signature(pair: tuple[Path, PublicKey], tmp_path: Path) -> None:
    private, _ = pair
    public, path = private.with_suffix(".pub"), tmp_path / "m.mslite"
    made(tmp_path, "other")
    path.write_bytes(signing.signed(written(), private))
    assert lite_runtime.load(path, trust=[tmp_path / "other.pub", public]).signatures
    for source in (path, path.read_bytes()):
        with pytest.raises(TrustError, match="not trusted"):
            lite_runtime.load(source, trust=[tmp_path / "other.pub"])
    with pytest.raises(TrustError, match="without a signature"):
        lite_runtime.load(written(), trust=[public])


def test_other_contents_lose_the_signature(pair: tuple[Path, PublicKey]) -> None:
    from tests.edge.gateway.models.conftest import counter

    private, public = pair
    signed = signing.signed(counter(), private)
    changed = bundle.with_state(signed, {"n": np.array(5, np.int64)})
    assert "without a signature" in refusal(changed, public) and not signatures_of(bundle.opened(changed))


def test_a_signature_cannot_be_written_as_an_extra_section() -> None:
    with pytest.raises(BundleError, match="msedge sign"):
        written(4, {SIGNATURE: b"{}"})


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"{}", b"[" * 60_000, b"x" * 70_000, b'{"signatures": 5}', b'{"signatures": [5]}',
        b'{"signatures": [{}]}', json.dumps({"signatures": [{}] * 17}).encode(),
        *(json.dumps({"signatures": [{"key": "0" * 64, "value": "0" * 128} | wrong]}).encode() for wrong in (
            {"key": "0" * 63}, {"key": "A" * 64}, {"key": 5}, {"value": "0"}, {"version": -1}, {"version": True},
            {"version": 10**18}, {"version": "1"}, {"model": "\n"}, {"model": "x" * 300}, {"model": 5},
        )),
    ],
)  # fmt: skip
def test_a_malformed_section_is_refused_where_it_is_read(raw: bytes, pair: tuple[Path, PublicKey]) -> None:
    """And nowhere else: a reader that does not ask for signatures skips it."""
    data = _with_section(written(), raw)
    assert bundle.read(data)
    with pytest.raises(BundleError, match="section 'signature'"):
        refusal(data, pair[1])


def _with_section(data: bytes, raw: bytes) -> bytes:
    from lite_runtime.bundle.layout import BUNDLE, Row, cut, digest_of, rows_of
    from lite_runtime.bundle.writing import laid_out

    file = bundle.opened(data)
    rows, needs = rows_of(file.data)
    contents = [cut(file.data, file.sections[row.name]) for row in rows]
    return laid_out([*rows, Row(SIGNATURE, len(raw), 0, needs, digest_of(raw))], [*contents, raw], needs, BUNDLE)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_no_random_signature_counts(key: bytes, value: bytes) -> None:
    signed = with_signatures(TINY, [Signature(key.hex(), value.hex())])
    assert "not of this bundle" in refusal(signed, PublicKey("k", key.hex()))


TINY = written()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Ed25519 public key"), ("nothing", "name: or expires:"), ("name: x\n", "Ed25519 public key"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "Ed25519 public key"),
        ("expires: soon\nKEY", "a day such as"), ("expires: 2030-13-01\nKEY", "a day such as"),
        ("valid: 2030-01-01\nKEY", "name: or expires:"), ("x" * 70_000, "at most"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_key(tmp_path: Path, text: str, problem: str) -> None:
    shown = signing.new_key("x")[1].decode().partition("\n")[2]
    (tmp_path / "k.pub").write_text(text.replace("KEY", shown))
    with pytest.raises(TrustError, match=problem):
        keys.public_key(tmp_path / "k.pub")
    with pytest.raises(TrustError):
        signing.signed(written(), tmp_path / "k.pub")
    with pytest.raises(TrustError, match="cannot read"):
        keys.public_key(tmp_path / "none")


def test_keys_of_openssl(tmp_path: Path) -> None:
    for words in ("genpkey -algorithm ed25519 -out a.key", "pkey -in a.key -pubout -out a.pub"):
        subprocess.run(["openssl", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    public = keys.public_key(tmp_path / "a.pub")
    assert (public.name, public.expires) == ("a", math.inf)
    assert refusal(signing.signed(written(), tmp_path / "a.key"), public) == ""
    subprocess.run(["openssl", "genrsa", "-out", "r.key", "1024"], cwd=tmp_path, check=True, capture_output=True)
    with pytest.raises(TrustError, match="Ed25519 private key"):
        signing.signed(written(), tmp_path / "r.key")
    locked = ["pkey", "-in", "a.key", "-aes256", "-passout", "pass:x", "-out", "l.key"]
    subprocess.run(["openssl", *locked], cwd=tmp_path, check=True, capture_output=True)
    with pytest.raises(TrustError, match="has a password"):
        signing.signed(written(), tmp_path / "l.key")


def test_reading_a_signed_bundle_needs_no_cryptography(pair: tuple[Path, PublicKey], tmp_path: Path) -> None:
    (tmp_path / "m.mslite").write_bytes(signing.signed(written(), pair[0]))
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "import numpy as np, lite_runtime\n"
        "from lite_runtime import bundle\n"
        "from lite_runtime.bundle import signatures\n"
        f"path = {str(tmp_path / 'm.mslite')!r}\n"
        "print(lite_runtime.load(path).run({'x': np.ones((1, 8), np.float32)})['y'].shape)\n"
        "print(len(signatures.signatures_of(bundle.opened(path))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split("\n")[:2] == ["(1, 4)", "1"], done.stderr


def test_programs_are_kept_for_each_file() -> None:
    """A kept program refers to constants by their place in the file, which signing moves."""
    from lite_runtime.bundle.layout import table_digest

    assert HEADER.size + ENTRY.size < len(TINY)
    signed = with_signatures(TINY, [Signature("0" * 64, "0" * 128)])
    assert bundle.opened(signed).digest == bundle.opened(TINY).digest
    assert table_digest(memoryview(signed)) != table_digest(memoryview(TINY))
    assert bundle.opened(signed).sections["weights"].offset != bundle.opened(TINY).sections["weights"].offset
