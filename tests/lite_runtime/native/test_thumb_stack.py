"""The stack of functions as read from their code is what the compiler says of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lite_runtime.native.build import BuildError
from lite_runtime.native.codegen.thumb_stack import LIBRARY, depths
from tests import boards

SOURCE = r"""
#include <stdint.h>
void use(void *);
int leaf(int x) { return x * x + 1; }
int small(int a, int b) { volatile int held[3] = {a, b, 1}; return held[a & 1]; }
void large(void) { char held[1000]; use(held); }
void larger(void) { char held[70000 - 65536 + 1236]; use(held); }
float floats(float *x) {
  float a[24];
  for (int i = 0; i < 24; i++) a[i] = x[i] * x[i + 1];
  use(x);
  float sum = 0;
  for (int i = 0; i < 24; i++) sum += a[i] * x[i];
  return sum;
}
__attribute__((noinline)) int inner(int x) { volatile char held[40]; held[x & 31] = 1; return held[3]; }
int outer(int x) { volatile char held[60]; held[x & 31] = 2; return inner(x) + held[1]; }
int64_t divided(int64_t a, int64_t b) { return a / b; }
"""
ALONE = ("leaf", "small", "inner")
CALLERS = ("large", "larger", "floats", "divided")


def _object(source: str, tmp_path: Path, *options: str) -> tuple[bytes, dict[str, int]]:
    """An object file, and what gcc says of each function's stack."""
    (tmp_path / "a.c").write_text(source)
    command = ["arm-none-eabi-gcc", *boards.BOARDS["cortex-m7"].flags.split(), "-mthumb", "-O2", "-fstack-usage"]
    command += ["-ffunction-sections", *options, "-c", "a.c", "-o", "a.o"]
    subprocess.run(command, check=True, cwd=tmp_path)
    said = (line.split("\t") for line in (tmp_path / "a.su").read_text().splitlines())
    return (tmp_path / "a.o").read_bytes(), {where.rpartition(":")[2]: int(size) for where, size, _ in said}


@boards.needs_boards
@pytest.mark.parametrize("optimise", ["-O1", "-O2", "-Os"])
def test_frames_are_the_compilers(optimise: str, tmp_path: Path) -> None:
    made, said = _object(SOURCE, tmp_path, optimise)
    found = depths(made)
    for name in ALONE:
        assert found[name] == said[name], name
    for name in CALLERS:
        assert found[name] == said[name] + LIBRARY, name
    assert found["outer"] == said["outer"] + said["inner"]


@boards.needs_boards
@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("int f(int x) { return x < 2 ? 1 : x * f(x - 1) + f(x - 2); }", "calls itself"),
        ("int f(int (*g)(int)) { return g(1) + g(2); }", "by its address"),
        ("void use(void *);\nvoid f(int n) { char held[n]; use(held); }", "not constant"),
    ],
)
def test_what_has_no_bound_is_refused(source: str, told: str, tmp_path: Path) -> None:
    made, _ = _object(source, tmp_path)
    with pytest.raises(BuildError, match=told):
        depths(made)
