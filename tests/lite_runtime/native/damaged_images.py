"""Image files damaged in every field and byte, each given to the reader; a program, so that it also runs under -O.

    python [-O] -m tests.lite_runtime.native.damaged_images FOLDER

Prints each kind of damage and how many cases it had. Exit code 1 if any of them was accepted. Uses no assert.
"""

from __future__ import annotations

import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

from lite_runtime._blake import blake2b
from lite_runtime.native import build, images

CODE = bytes(range(256)) * 20
KERNELS = {"f": 0, "g": 64}
OTHER = b"\xc3" * 100
IDENTITY = "0123456789abcdef0123456789abcdef"


def whole() -> bytes:
    return build.image_file({"a": (CODE, KERNELS), "b": (OTHER, {"h": 99})}, IDENTITY)


def with_text(text: str) -> bytes:
    """An image file with another header text under a digest that fits it, as its writer's mistake would be."""
    content, raw = whole(), text.encode("latin-1")
    head = images.HEAD.pack(images.MAGIC, len(raw), blake2b(raw, digest_size=16).digest()) + raw
    return aligned(head) + content[len(aligned(content[: images.HEAD.size + len(text_of(content))])) :]


def aligned(head: bytes) -> bytes:
    """A header, and what is between it and the code."""
    return head.ljust(-(-len(head) // images.ALIGN) * images.ALIGN, b"\0")


def text_of(content: bytes) -> str:
    _, length, _ = images.HEAD.unpack_from(content)
    return content[images.HEAD.size : images.HEAD.size + length].decode()


def flipped(content: bytes, begin: int, end: int, step: int = 1) -> Iterator[bytes]:
    """Each byte of a range, or one in `step`, changed in its lowest and in its highest bit, and made zero."""
    for at in range(begin, end, step):
        for value in {content[at] ^ 1, content[at] ^ 0x80, 0} - {content[at]}:
            yield content[:at] + bytes([value]) + content[at + 1 :]


def fields(content: bytes) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Every kind of damage and its cases."""
    magic, length, digest = images.HEAD.unpack_from(content)
    end = images.HEAD.size + length
    start = len(aligned(content[:end]))
    yield "magic", flipped(content, 0, 8)
    yield "an earlier format", iter([b"MSKIMG04" + content[8:]])
    yield "header's length", (
        images.HEAD.pack(magic, other, digest) + content[images.HEAD.size :]
        for other in (0, 1, length - 1, length + 1, start, len(content), 0xFFFFFFFF)
    )
    yield "header's digest", flipped(content, images.HEAD.size - 16, images.HEAD.size)
    yield "header's text", flipped(content, images.HEAD.size, end)
    yield "a family's code", flipped(content, start, start + len(CODE), 37)
    yield "cut short", (content[:size] for size in (*range(0, end + 2), start, start + 1, start + len(CODE) - 1))
    yield "a row that its writer got wrong", (with_text(text) for text in wrong_texts(text_of(content)))


def wrong_texts(text: str) -> Iterator[str]:
    """Header texts that are no header: fields missing, too many, not numbers, outside the code."""
    identity, a, *rest = text.split("\n")
    name, start, size, digest, *kernels = a.split()
    rows = [
        [],
        [name],
        [name, start],
        [name, start, size],
        [name, start, size, digest, "f"],
        [name, "x", size, digest, *kernels],
        [name, start, "x", digest, *kernels],
        [name, start, size, digest, "f", "x"],
        [name, "-64", size, digest, *kernels],
        [name, "64", size, digest, *kernels],
        [name, start, "-1", digest, *kernels],
        [name, start, str(int(size) - 1), digest, *kernels],
        [name, start, str(1 << 40), digest, *kernels],
        [name, start, "9" * 5000, digest, *kernels],
        [name, start, size, "0" * 32, *kernels],
        [name, start, size, "", *kernels],
        [name, start, size, digest, "f", "-1"],
        [name, start, size, digest, "f", size],
        [name, start, size, digest, "f", str(1 << 62)],
        ["c", start, size, digest, *kernels],
    ]
    yield from ("\n".join((identity, " ".join(row), *rest)) for row in rows)
    yield ""
    yield "\xff\xfe"


def refused(path: Path, content: bytes) -> bool:
    """Whether the reader says BuildError of an image file, at once or for its first family."""
    path.write_bytes(content)
    try:
        with path.open("rb") as file:
            build.ImageFile(file, "image").code("a")
    except build.BuildError as problem:
        return "expected" in str(problem) and "got" in str(problem) and "image is damaged" in str(problem)
    return False


def packed(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Files that are not packed images."""
    content = whole()
    identity, stream = bytes.fromhex(IDENTITY), lzma.compress(content)
    good = build.PACKED_HEAD.pack(build.PACKED, identity, len(content)) + stream
    for at in range(8):
        yield "packed magic", good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    for size in (0, 1, len(content) - 1, len(content) + 1, 1 << 40):
        yield "packed size", build.PACKED_HEAD.pack(build.PACKED, identity, size) + stream
    yield "packed identity", build.PACKED_HEAD.pack(build.PACKED, bytes(16), len(content)) + stream
    for size in (0, 8, 31, 32, 40, len(good) // 2):
        yield "packed, cut short", good[:size]
    for at in range(32, len(good), 7):
        yield "packed stream", good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :]


def packed_refused(folder: Path, content: bytes) -> bool:
    """Whether a packed file gives BuildError or else, where only xz's own padding changed, the very image it held."""
    (folder / "some.xz").write_bytes(content)
    build._native.cache_clear()
    try:
        held = build._native("some")
    except build.BuildError:
        return True
    if held is None:
        return False
    try:
        same = all(bytes(held.code(f)[0]) == code for f, code in (("a", CODE), ("b", OTHER)))
    except build.BuildError:
        return True
    return same and held.identity == IDENTITY and content[:32] == good_head()


def good_head() -> bytes:
    return build.PACKED_HEAD.pack(build.PACKED, bytes.fromhex(IDENTITY), len(whole()))


def main(folder: Path) -> int:
    content, path, accepted = whole(), folder / "image.img", 0
    if refused(path, content):
        print("a whole image was refused")
        return 1
    for kind, cases in fields(content):
        found = [refused(path, case) for case in cases]
        accepted += found.count(False)
        print(f"{kind}: {len(found)} cases, {found.count(False)} accepted")
    build.NATIVE = str(folder)
    build.cache_folder = lambda: "/proc/no/such/folder"
    kinds: dict[str, list[bool]] = {}
    for kind, case in packed(folder):
        kinds.setdefault(kind, []).append(packed_refused(folder, case))
    for kind, found in kinds.items():
        accepted += found.count(False)
        print(f"{kind}: {len(found)} cases, {found.count(False)} accepted")
    print(f"asserts are {'on' if __debug__ else 'off'};", "all refused" if not accepted else f"{accepted} accepted")
    return int(accepted > 0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
