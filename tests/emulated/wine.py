"""A Python for Windows, which Wine runs: CPython's own libraries and NumPy's own wheel, both from PyPI.

CPython's libraries are in the wheel of a package that programs are bundled with; its modules in Python are those of
this machine's Python, of the same minor version. `python.exe` is a program of five lines. Wine 8 lacks C99's functions
of complex numbers, which NumPy's files import: they are given a library that has them, under a name of the same length.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

__all__ = ["EMULATOR", "command", "made", "missing"]

EMULATOR = "wine"
COMPILER, READER = "x86_64-w64-mingw32-gcc", "x86_64-w64-mingw32-objdump"
CARRIER = "panda3d==1.10.16"
"""The package whose wheel for Windows carries CPython's libraries, in `INSIDE`."""
INSIDE = "deploy_libs/"
MINOR = sys.version_info[1]
MATH, OURS = "api-ms-win-crt-math-l1-1-0.dll", "complex-functions-of-wine8.dll"
PYTHON = f"""
#include <stdio.h>
#include <windows.h>
int wmain(int count, wchar_t **words) {{
  HMODULE library = LoadLibraryW(L"python3{MINOR}.dll");
  if (!library) {{ fprintf(stderr, "python3{MINOR}.dll: error %lu\\n", GetLastError()); return 1; }}
  return ((int (*)(int, wchar_t **))(void *)GetProcAddress(library, "Py_Main"))(count, words);
}}
"""
COMPLEX = """
#include <complex.h>
typedef struct { float re, im; } f_t;
typedef struct { double re, im; } d_t;
static float complex f(f_t z) { float complex c; __real__ c = z.re; __imag__ c = z.im; return c; }
static double complex d(d_t z) { double complex c; __real__ c = z.re; __imag__ c = z.im; return c; }
static f_t to_f(float complex c) { return (f_t){__real__ c, __imag__ c}; }
static d_t to_d(double complex c) { return (d_t){__real__ c, __imag__ c}; }
#define EACH(name) f_t our_##name##f(f_t z) { return to_f(name##f(f(z))); } \\
  d_t our_##name(d_t z) { return to_d(name(d(z))); } d_t our_##name##l(d_t z) { return to_d(name(d(z))); }
#define REAL(name) float our_##name##f(f_t z) { return name##f(f(z)); } \\
  double our_##name(d_t z) { return name(d(z)); } double our_##name##l(d_t z) { return name(d(z)); }
EACH(ccos) EACH(ccosh) EACH(cexp) EACH(clog) EACH(csin) EACH(csinh) EACH(csqrt) EACH(ctan) EACH(ctanh)
REAL(cabs) REAL(carg) REAL(cimag) REAL(creal)
f_t our_cpowf(f_t a, f_t b) { return to_f(cpowf(f(a), f(b))); }
d_t our_cpow(d_t a, d_t b) { return to_d(cpow(d(a), d(b))); }
d_t our_cpowl(d_t a, d_t b) { return to_d(cpow(d(a), d(b))); }
"""
NAMES = "ccos ccosh cexp clog csin csinh csqrt ctan ctanh cabs carg cimag creal cpow"
OWN = frozenset(f"{name}{suffix}" for name in NAMES.split() for suffix in ("", "f", "l"))
"""What `COMPLEX` defines, each behind `our_`."""


def missing() -> str:
    """What is not installed here; "" if nothing is missing."""
    for program, package in ((EMULATOR, "wine"), (COMPILER, "gcc-mingw-w64-x86-64"), (READER, "gcc-mingw-w64-x86-64")):
        if shutil.which(program) is None:
            return f"{program} is not installed: apt-get install {package}"
    return ""


def made(scratch: Path) -> Path:
    """A folder with Python, NumPy and Wine's own files: about 15 s and 250 MB. Raises CalledProcessError if a package
    cannot be had."""
    into, wheels = scratch / "made", scratch / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels)]
    command += ["--platform", "win_amd64", "--only-binary=:all:", "--python-version", f"3.{MINOR}"]
    subprocess.run([*command, CARRIER, f"numpy=={np.__version__}"], check=True, capture_output=True)
    python = into / "python"
    python.mkdir(parents=True)
    (carrier,) = wheels.glob("panda3d-*.whl")
    with zipfile.ZipFile(carrier) as archive:
        for name in archive.namelist():
            if name.startswith(INSIDE) and "/api-ms-" not in name and name.endswith((".dll", ".pyd")):
                (python / name.removeprefix(INSIDE)).write_bytes(archive.read(name))
    (numpy,) = wheels.glob("numpy-*.whl")
    with zipfile.ZipFile(numpy) as archive:
        archive.extractall(into / "site")
    (into / "Lib").symlink_to(sysconfig.get_path("stdlib"))
    (into / "DLLs").symlink_to("python")
    (scratch / "python.c").write_text(PYTHON)
    _compiled(scratch, "-municode", "python.c", "-o", str(python / "python.exe"))
    _redirected(scratch, into)
    environment = {"WINEPREFIX": str(into / "wine"), "WINEDEBUG": "-all"}
    subprocess.run([EMULATOR, "wineboot", "--init"], env={**os.environ, **environment}, check=True, capture_output=True)
    return into


def _compiled(scratch: Path, *arguments: str) -> None:
    subprocess.run([COMPILER, "-O1", *arguments], cwd=scratch, check=True, capture_output=True)


def _redirected(scratch: Path, into: Path) -> None:
    """Make the library with functions of complex numbers, and let NumPy's files import it."""
    files = [path for path in (into / "site").rglob("*") if path.suffix in (".pyd", ".dll")]
    wanted = {name for path in files for name in _imports(path)}
    rows = (f"{name} = {f'our_{name}' if name in OWN else f'ucrtbase.{name}'}" for name in sorted(wanted))
    (scratch / "complex.def").write_text("\n".join((f"LIBRARY {OURS}", "EXPORTS", *rows, "")))
    (scratch / "complex.c").write_text(COMPLEX)
    _compiled(scratch, "-shared", "-static", "complex.c", "complex.def", "-o", str(into / "python" / OURS))
    for path in files:
        path.write_bytes(path.read_bytes().replace(MATH.encode(), OURS.encode()))


def _imports(path: Path) -> list[str]:
    """The functions that a file imports from the C library's mathematics."""
    shown = subprocess.run([READER, "-p", str(path)], capture_output=True, check=True).stdout.decode(errors="replace")
    for part in shown.split("DLL Name: ")[1:]:
        if part.startswith(MATH):
            return [row.split()[-1] for row in part.partition("\n\n")[0].splitlines()[2:] if row.strip()]
    return []


def command(at: Path, target: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The command that runs Python of a folder that `made` made. Paths are those of this machine: Wine shows it as the
    drive that Python is started on."""
    path = ";".join(filter(None, (str(at / "site"), environment.get("PYTHONPATH"))))
    seen = {**environment, "PYTHONPATH": path, "PYTHONHOME": str(at), "PYTHONDONTWRITEBYTECODE": "1"}
    seen |= {"WINEPREFIX": str(at / "wine"), "WINEDEBUG": "-all", "MSEDGE_TARGET": target}
    words = [f"{name}={value}" for name, value in seen.items()]
    return ["env", *words, EMULATOR, str(at / "python" / "python.exe"), "-S", *arguments]
