"""Libraries for Windows: run in Wine where it is there, linked where a linker is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from converter.ahead import build
from lite_runtime.native import objects
from lite_runtime.native.build import BuildError
from lite_runtime.native.libraries import coff
from lite_runtime.native.target import host, runnable
from lite_runtime.targets import named
from tests.converter.ahead import clib, models
from tests.emulated.device import inputs_of
from tests.emulated.working import ROOT

MINGW, WINE = "x86_64-w64-mingw32-", shutil.which("wine")
LINKER = next(Path("/usr/lib").glob("llvm-*/bin/ld.lld"), None)
CLANG = shutil.which("clang-19")
HERE = {target.name for target in runnable()}
pytestmark = pytest.mark.skipif(host() is None, reason="no native kernels on this processor")
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "msedge.h"

static struct msedge model;

/* Three runs of the signature of the first argument on the inputs in files; the results and the state to a file. */
int main(int count, char **words) {
  size_t bytes, flat_bytes = (size_t)(msedge_model_end - msedge_model);
  if (msedge_size(&msedge_kernels, msedge_model, flat_bytes, &bytes)) return 1;
  char *raw = malloc(bytes + 64), *memory = raw + (64 - (uintptr_t)raw % 64) % 64;
  if (msedge_open(&model, &msedge_kernels, msedge_model, flat_bytes, memory, bytes)) return 2;
  for (uint32_t i = 0; i < model.signature_count; i++) if (msedge_test(&model, i)) return 3;
  const struct msedge_signature *signature = &model.signatures[atoi(words[1])];
  FILE *out = fopen(words[2], "wb");
  for (int run = 0; run < 3; run++) {
    for (uint32_t i = 0; i < signature->input_count; i++) {
      FILE *file = fopen(words[3 + i], "rb");
      if (fread(signature->inputs[i].data, 1, signature->inputs[i].bytes, file) != signature->inputs[i].bytes) return 4;
      fclose(file);
    }
    if (msedge_run(&model, (uint32_t)atoi(words[1]))) return 5;
    for (uint32_t i = 0; i < signature->output_count; i++)
      fwrite(signature->outputs[i].data, 1, signature->outputs[i].bytes, out);
  }
  for (uint32_t i = 0; i < model.state_count; i++) fwrite(model.states[i].data, 1, model.states[i].bytes, out);
  return fclose(out) || count < 3;
}
"""
PYTHON = """
import sys
import numpy as np
import lite_runtime
source, signature, out, *inputs = sys.argv[1:]
model = lite_runtime.load(source, backend="native")
given = {port.name: np.load(path) for port, path in zip(model.inputs(signature), inputs)}
with open(out, "wb") as file:
    for _ in range(3):
        file.writelines(array.tobytes() for array in model.run(given, signature).values())
    file.writelines(array.tobytes() for array in model.state_dict().values())
"""


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wine's folder, which its first program makes."""
    return tmp_path_factory.mktemp("wine")


@pytest.mark.skipif(WINE is None or shutil.which(f"{MINGW}gcc") is None, reason="no Wine, or no MinGW")
@pytest.mark.parametrize("level", ["v3", "v2"])
def test_a_program_for_windows_trains_with_the_bits_of_linux(level: str, prefix: Path, tmp_path: Path) -> None:
    assert WINE is not None
    if f"x86-64-{level}" not in HERE:
        pytest.skip(f"this processor is not of x86-64-{level}")
    source, folder = models.int8_head(), tmp_path / "model"
    made = build(source, folder, f"windows-x86-64-{level}")
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "model.mslite").write_bytes(source)
    for command in (
        ["make", "-s", "-C", folder, f"CROSS_COMPILE={MINGW}"],
        [
            f"{MINGW}gcc",
            "-O2",
            "-I",
            folder,
            tmp_path / "program.c",
            folder / "libmodel.a",
            "-o",
            tmp_path / "program.exe",
        ],
    ):
        subprocess.run(list(map(str, command)), check=True, timeout=120)
    assert (folder / "model.dll").read_bytes()[:2] == b"MZ"
    import lite_runtime

    model = lite_runtime.load(source)
    inputs = inputs_of(
        [port._replace(shape=made.signatures["train_step"][port.name]) for port in model.inputs("train_step")]
    )
    inputs["labels"] = np.minimum(inputs["labels"], 3)
    for name, array in inputs.items():
        (tmp_path / f"{name}.bin").write_bytes(array.tobytes())
        np.save(tmp_path / f"{name}.npy", array)
    here = {**os.environ, "WINEPREFIX": str(prefix), "WINEDEBUG": "-all"}
    number = str(list(made.signatures).index("train_step"))
    words = [WINE, "program.exe", number, "found", *(f"{name}.bin" for name in inputs)]
    subprocess.run(words, cwd=tmp_path, env=here, check=True, timeout=300, stderr=subprocess.DEVNULL)
    there = {**os.environ, "PYTHONPATH": str(ROOT), "MSEDGE_TARGET": f"x86-64-{level}"}
    words = [sys.executable, "-c", PYTHON, "model.mslite", "train_step", "wanted", *(f"{name}.npy" for name in inputs)]
    subprocess.run(words, cwd=tmp_path, env=there, check=True)
    assert (tmp_path / "found").read_bytes() == (tmp_path / "wanted").read_bytes()


@pytest.mark.skipif(CLANG is None or LINKER is None, reason="no clang 19, or no linker")
def test_a_library_for_windows_on_arm_is_linked(tmp_path: Path) -> None:
    """Without Windows' headers and libraries."""
    build(models.int8_head(), tmp_path, "windows-arm64", signatures=["predict"])
    for name in ("msedge.c", "msedge_test.c", "model.S"):
        flags = ["--target=aarch64-w64-windows-gnu", *clib.WARNINGS[:5], "-Wno-unused-command-line-argument"]
        flags += ["-ffreestanding", "-fno-stack-protector", "-O2", "-c", name, "-o", f"{name}.o"]
        subprocess.run([str(CLANG), *flags], cwd=tmp_path, check=True)
    (tmp_path / "memory.c").write_text(
        "#include <stddef.h>\n"
        "void *memcpy(void *a, const void *b, size_t n) { char *c = a; for (size_t i = 0; i < n; i++) "
        "((volatile char *)c)[i] = ((const char *)b)[i]; return a; }\n"
        "void *memset(void *a, int v, size_t n) { for (size_t i = 0; i < n; i++) ((volatile char *)a)[i] = (char)v; "
        "return a; }\nvoid __chkstk(void) {}\n"
    )
    subprocess.run(
        [str(CLANG), "--target=aarch64-w64-windows-gnu", "-ffreestanding", "-O2", "-c", "memory.c"],
        cwd=tmp_path,
        check=True,
    )
    parts = ["msedge.c.o", "msedge_test.c.o", "model.S.o", "kernels.o", "memory.o"]
    command = [str(LINKER), "-m", "arm64pe", "--shared", "--entry=memset", *parts, "-o", "model.dll"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "model.dll").read_bytes()[:2] == b"MZ"


def test_object_files_for_windows_are_read() -> None:
    import llvmlite.binding as llvm

    from lite_runtime.native.codegen import retarget

    for name in ("windows-x86-64-v2", "windows-arm64"):
        target = named(name)
        made, _ = objects.object_for(("elementwise.f32_chain", "copy.rows"), (), target)
        assert coff.MACHINES[made[:2]] == target.processor
        assert coff.outside(made) <= objects._PROBES
        retarget.llvm()
        text = "declare void @a_long_name_of_another()\ndeclare void @puts()\n"
        text += "define void @run() {\n call void @puts()\n call void @a_long_name_of_another()\n ret void\n}"
        machine = llvm.Target.from_triple(target.triple).create_target_machine()
        assert coff.outside(machine.emit_object(llvm.parse_assembly(text))) == {"puts", "a_long_name_of_another"}
        for other in (b"", b"\x7fELF", made[:18], made[:400]):
            with pytest.raises(BuildError, match="expected a whole COFF object"):
                coff.outside(other)
