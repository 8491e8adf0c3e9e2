"""Operations on emulated Cortex-M boards give what they give here: in their generic form, and by the processor's own
instructions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lite_runtime.graph import Array
from lite_runtime.native.codegen import retarget
from lite_runtime.native.codegen.bodies import bodies_of, body
from lite_runtime.native.codegen.link import outside
from lite_runtime.targets import Target
from tests import boards
from tests.lite_runtime.native import operations

PROGRAM = r"""
#include <stdint.h>
#include "startup.h"
static void dump(const unsigned char *at, unsigned bytes) {
  char line[65];
  for (unsigned i = 0, n; i < bytes; i += n) {
    n = bytes - i < 32 ? bytes - i : 32;
    for (unsigned k = 0; k < n; k++) {
      line[2 * k] = "0123456789abcdef"[at[i + k] >> 4];
      line[2 * k + 1] = "0123456789abcdef"[at[i + k] & 15];
    }
    line[2 * n] = 0;
    print(line);
  }
  print("\n");
}
#define AT(x) ((int64_t)(uintptr_t)(x))
"""
"""Each operation then has a function that calls it for every row and dumps the results."""


def _c_array(name: str, array: Array, constant: bool) -> str:
    data = ",".join(map(str, np.ascontiguousarray(array).view(np.uint8).ravel().tolist()))
    kind = f"static {'const ' * constant}unsigned char"
    return f"{kind} {name}[{array.nbytes}] __attribute__((aligned(16))) = {{{data}}};"


def _part(k: int, name: str, operands: list[Array], wanted: Array) -> str:
    """C that runs operation number k."""
    stores, by_table = name == "store_first", name == "look_up"
    held = operands[: 1 if by_table else None]
    arrays = [_c_array(f"a{k}_{i}", operand, not (stores and i == 1)) for i, operand in enumerate(held)]
    where = [f"AT(a{k}_{i} + {operand.strides[0]} * row)" for i, operand in enumerate(operands)]
    before = ""
    if by_table:
        arrays.append(_c_array(f"table{k}", operations.TABLE, True))
        before, where[-1] = f"int64_t table = AT(table{k});", "AT(&table)"
    where.append(f"AT(found{k} + {wanted.strides[0]} * row)")
    shown = f"a{k}_1" if stores else f"found{k}"
    arguments = ", ".join(["int64_t"] * len(where))
    return "\n".join(
        [
            *arrays,
            f"static unsigned char found{k}[{wanted.nbytes}] __attribute__((aligned(16)));",
            f'extern void run{k}({arguments}) __asm__("test.run{k}");',
            f"static void part{k}(void) {{ {before}",
            f"for (int row = 0; row < {operations.WORDS}; row++) run{k}({', '.join(where)});",
            f"dump({shown}, {wanted.nbytes}); }}",
        ]
    )


def _subnormals(array: Array) -> Array:
    """Where float32 numbers are subnormal, which Helium takes for 0."""
    return (array != 0) & (np.abs(array) < np.finfo(np.float32).tiny) if array.dtype == np.float32 else array != array


def _rows(target: Target, name: str, lanes: int) -> tuple[list[Array], Array]:
    """Operands of a case and its results; without subnormal numbers for a processor that has none."""
    operands, wanted = operations.rows(name, lanes)
    if target.shape.vectors:
        for operand in operands:
            operand[_subnormals(operand)] = 0
        with np.errstate(all="ignore"):
            wanted = np.ascontiguousarray(operations.CASES[name].meaning(*operands))
    return operands, wanted


@boards.needs_boards
@pytest.mark.parametrize("target", boards.TARGETS, ids=lambda target: target.name)
def test_every_operation_is_what_numpy_computes(target: Target, tmp_path: Path) -> None:
    own, cases, objects, parts = bodies_of(target), [], [], []
    names = [(name, lanes) for name in operations.CASES for lanes in (4, 16, *[1] * (name in operations.SCALAR))]
    for name, lanes in names:
        for by_own in (False, True) if body(own, name, lanes) else (False,):
            if target.shape.vectors and name == "from_half" and lanes > 1 and not by_own:
                continue  # a product of subnormal numbers
            kept = {key: emit for key, emit in own.items() if by_own or key[0] != name}
            made, _ = retarget.object_of(
                operations.bitcode(name, lanes, f"test.run{len(cases)}"), target, "test", bodies=kept
            )
            if not by_own and not all(symbol.startswith("__aeabi_") for symbol in outside(made)):
                continue  # the generic form would be a call of libm, which is why the target has its own
            operands, wanted = _rows(target, name, lanes)
            parts.append(_part(len(cases), name, operands, wanted))
            objects.append(tmp_path / f"{len(cases)}.o")
            objects[-1].write_bytes(made)
            cases.append((name, lanes, by_own, wanted))
    calls = " ".join(f"part{k}();" for k in range(len(cases)))
    source = tmp_path / "operations.c"
    source.write_text("\n".join([PROGRAM, *parts, f"int main(void) {{ {calls} return 0; }}"]))
    text = boards.ran(target, boards.compiled(target, [source, *objects], tmp_path / "operations.elf"))
    assert len(text.split()) == len(cases) >= 40
    for line, (name, lanes, by_own, wanted) in zip(text.split(), cases, strict=True):
        found = np.frombuffer(bytes.fromhex(line), wanted.dtype).reshape(wanted.shape)
        if target.shape.vectors:
            found, wanted = (np.where(_subnormals(wanted), 0, array).astype(wanted.dtype) for array in (found, wanted))
        assert operations.same(name, found, wanted), (name, lanes, by_own)
