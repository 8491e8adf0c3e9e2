"""A wrong word cannot be written: binders fail in mypy, kernels when they are imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lite_runtime

ROOT = Path(lite_runtime.__file__).parents[1]

# -- kernels ----------------------------------------------------------------------------------------------------------

MODULE = """
from lite_runtime.native.simd import device, kernel, nth, num, ptr, real, tail
from lite_runtime.steps.declaration import FLAGS, named, row
from lite_runtime.steps.elementwise import Chain
from lite_runtime.steps.gemm import F32Gemm, F32Pack, F32Transpose
from lite_runtime.steps.indexing import Pair, ScatterND
from lite_runtime.steps.pool import Pool

TURN, PACK, GEMM, POOL, CHAIN = named(F32Transpose), named(F32Pack), named(F32Gemm), named(Pool), named(Chain)
SCATTER, PAIR = named(ScatterND), row(Pair)
REST = ("batches", "rows", "columns")


@device
def helper(step, bases):
    return ptr(step, bases, TURN.a)


"""
"""What every module below begins with; F32Transpose: a, out, batches, rows, columns."""


def imported(folder: Path, body: str) -> None:
    """Import a module of kernels."""
    path = folder / f"kernels_of_a_test_{len(list(folder.iterdir()))}.py"
    path.write_text(MODULE + body)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def kernel(*lines: str, of: str = "F32Transpose", unread: str = "()") -> str:
    """A kernel of these statements."""
    body = "".join(f"    {line}\n" for line in lines)
    return f"@kernel({of}, unread={unread})\ndef turn(step, bases, worker, workers):\n{body}"


A, OUT = "a = ptr(step, bases, TURN.a)", "out = ptr(step, bases, TURN.out)"
SIZES = "n = num(step, TURN.batches), num(step, TURN.rows), num(step, TURN.columns)"


def test_a_kernel_that_reads_as_declared_is_taken(tmp_path: Path) -> None:
    imported(tmp_path, kernel(A, OUT, SIZES))
    imported(tmp_path, kernel("a = helper(step, bases)", OUT, SIZES))
    imported(tmp_path, kernel(A, OUT, unread="REST"))


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((A, OUT, "n = num(step, TURN.lines)"), "TURN.lines is declared nowhere; there are a, out, batches"),
        ((A, "out = num(step, TURN.out)", SIZES), "reads an operand as by num"),
        ((A, OUT, "n = ptr(step, bases, TURN.rows)"), "reads an integer as by ptr"),
        ((A, OUT, "n = real(step, TURN.rows)"), "reads an integer as by real"),
        ((A, OUT, "n = tail(step, TURN.rows)"), "reads an integer as by tail"),
        ((A, OUT, "n = num(step, 8)"), "names no word"),
        ((A, OUT, "n = num(step, TURN.rows + TURN.columns)"), "names more than one word"),
        ((A, OUT, "n = step[8]"), "reads a word by its place"),
        ((A, OUT, "n = step[TURN.rows]"), "reads a word by its place"),
        ((A, OUT, "n = TURN.rows + 1"), "TURN.rows is no argument of"),
        ((A, OUT, "n = num(step, PACK.row_step)"), "reads word 10, which is not row_step"),
        ((A, OUT, "n = num(step, GEMM.rows)"), "reads word 15, which is not rows"),
        ((A, OUT), "does not read batches, columns, rows of F32Transpose"),
        ((OUT, SIZES), "does not read a of F32Transpose"),
    ],
)
def test_a_kernel_that_reads_in_another_way_fails_when_imported(
    tmp_path: Path, lines: tuple[str, ...], says: str
) -> None:
    with pytest.raises(TypeError) as error:
        imported(tmp_path, kernel(*lines))
    assert says in str(error.value)
    assert "kernels_of_a_test" in str(error.value)


def test_helpers_are_checked_too(tmp_path: Path) -> None:
    wrong = "@device\ndef wrong(step):\n    return real(step, TURN.rows)\n\n\n"
    with pytest.raises(TypeError, match="reads an integer as by real"):
        imported(tmp_path, wrong + kernel(A, OUT, SIZES, "m = wrong(step)"))
    made = "def made(what):\n    @device\n    def inner(step):\n        return num(step, what)\n    return inner\n\n\n"
    with pytest.raises(TypeError, match="names no word"):
        imported(tmp_path, made + "inner = made(8)\n" + kernel(A, OUT, SIZES, "m = inner(step)"))


def test_words_declared_unread_must_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"names rows in unread=, which F32Transpose lacks or it reads"):
        imported(tmp_path, kernel(A, OUT, SIZES, unread='("rows",)'))
    with pytest.raises(TypeError, match=r"names lines in unread="):
        imported(tmp_path, kernel(A, OUT, SIZES, unread='("lines",)'))


def test_branches_that_constants_rule_out_do_not_count(tmp_path: Path) -> None:
    factory = """
ONE, TWO = 1, 2

def made(what, flag, unread):
    @kernel(F32Transpose, unread=unread)
    def turn(step, bases, worker, workers):
        a, out = ptr(step, bases, TURN.a), ptr(step, bases, TURN.out)
        if what == ONE:
            n = num(step, TURN.rows)
        else:
            n = num(step, TURN.columns)
        if flag:
            n = num(step, TURN.batches)
    return turn

"""
    imported(tmp_path, factory + 'made(ONE, True, ("columns",))\nmade(TWO, False, ("rows", "batches"))\n')
    with pytest.raises(TypeError, match="does not read columns"):
        imported(tmp_path, factory + "made(ONE, True, ())\n")


def test_words_have_offsets_and_tails_rows(tmp_path: Path) -> None:
    operands = "i, u = ptr(step, bases, SCATTER.indices), ptr(step, bases, SCATTER.updates)"
    target = "t = ptr(step, bases, SCATTER.target)"
    numbers = "n = num(step, SCATTER.rows), num(step, SCATTER.run), num(step, SCATTER.how), num(step, SCATTER.depth)"
    tail = "p = tail(step, SCATTER.pairs)", "q = step[worker + PAIR.extent]"
    pairs = "first = num(step, SCATTER.pairs + 2 * worker + PAIR.stride)"
    imported(tmp_path, kernel(operands, target, numbers, pairs, of="ScatterND"))
    imported(
        tmp_path,
        kernel(operands, target, numbers, *tail, of="ScatterND"),
    )
    with pytest.raises(TypeError, match=r"PAIR\.size is declared nowhere; there are extent, stride"):
        imported(tmp_path, kernel(operands, target, numbers, pairs.replace("PAIR.stride", "PAIR.size"), of="ScatterND"))


# -- binders ----------------------------------------------------------------------------------------------------------

BINDER = """
from lite_runtime import steps
from lite_runtime.steps.operand import Operand


def turned(a: Operand, out: Operand, b: float) -> list[object]:
    return [
        steps.F32Transpose(a=a, out=out, batches=1, rows=2, columns=3),
{lines}
    ]
"""
WRONG = {
    "steps.F32Transpose(a=a, out=out, batches=1, row=2, columns=3)": 'Unexpected keyword argument "row"',
    "steps.F32Transpose(a=a, out=out, batches=1, rows=2)": 'Missing named argument "columns"',
    "steps.F32Transpose(a=a, out=out, batches=1, rows=2.0, columns=3)": 'incompatible type "float"; expected "int"',
    "steps.F32Transpose(a=1, out=out, batches=1, rows=2, columns=3)": 'expected "Operand"',
    "steps.F32Transpose(a=a, out=None, batches=1, rows=2, columns=3)": 'expected "Operand"',
    "steps.F32Transpose(a, out, 1, 2, 3)": "Too many positional arguments",
    "steps.F32Transposed(a=a, out=out, batches=1, rows=2, columns=3)": 'has no attribute "F32Transposed"',
    "steps.F32Transpose(a=a, out=out, batches=1, rows=2, columns=3).row": 'has no attribute "row"',
}
"""A line -> what mypy says of it."""


def test_a_wrong_word_fails_in_mypy(tmp_path: Path) -> None:
    binder = tmp_path / "binder.py"
    binder.write_text(BINDER.replace("{lines}", "".join(f"        {line},\n" for line in WRONG)))
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\nfollow_imports = silent\n[mypy-numpy.*]\nfollow_imports = skip\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            str(settings),
            "--cache-dir",
            str(tmp_path / "cache"),
            str(binder),
        ],
        env={**os.environ, "MYPYPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    found = [line for line in done.stdout.splitlines() if ": error: " in line]
    first = binder.read_text().splitlines().index(f"        {next(iter(WRONG))},") + 1
    assert done.returncode == 1, done.stdout + done.stderr
    assert {int(line.split(":")[1]) for line in found} == set(range(first, first + len(WRONG))), done.stdout
    for i, says in enumerate(WRONG.values()):
        assert any(f":{first + i}: " in line and says in line for line in found), (says, done.stdout)
