"""The fuzzer of the converter, as part of the test suite: few cases, always the same, and it must notice what it looks
for. It runs in a process of its own, because it forks, and because tests may have started threads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.converting import seeds
from tests.fuzz.converting.trying import CLEAN, Case, Seeds, try_case

ROOT = Path(__file__).parents[2]


def run(*flags: str, program: tuple[str, ...] = ("-m", "tests.fuzz.converting")) -> dict[str, Any]:
    """The summary, with the exit status as "status"."""
    done = subprocess.run([sys.executable, *program, "--few", *flags], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout, done.stderr
    return {"status": done.returncode, **json.loads(done.stdout)}


@pytest.mark.parametrize("form", seeds.FORMATS)
def test_hostile_models(form: str) -> None:
    found = run("--format", form, "--cases", "100", "--seed", "3")
    assert not found["failures"], found["failures"]
    assert found["cases"] == 100 and found["status"] == 0
    assert found["ran"] > 5 and found["refused"] > 40


@pytest.mark.parametrize("form", seeds.FORMATS)
def test_cases_are_the_same_everywhere(form: str) -> None:
    one, other = (Seeds(form, seeds.few(form)) for _ in range(2))
    made = [Case.numbered(one, 3, i).file() for i in range(60)]
    assert made == [Case.numbered(other, 3, i).file() for i in range(60)]
    assert len(set(made)) > 50


def test_seeds_are_sound(tmp_path: Path) -> None:
    """Nearly all convert: damage is what the fuzzer adds. Those of refused operators are there on purpose."""
    for form in seeds.FORMATS:
        ends = []
        for number, data in enumerate(seeds.few(form)):
            folder = tmp_path / f"{form}{number}"
            folder.mkdir()
            ends.append(try_case(data, {}, folder, form, "seed").kind)
        assert set(ends) <= set(CLEAN)
        assert ends.count("ran") > 10, ends


FAULTS = {
    "crash": "os.kill(os.getpid(), signal.SIGSEGV)",
    "hang": "while True: pass",
    "error": "raise ZeroDivisionError('case five')",
    "bug": "raise ConvertError('this is a bug in msedge')",
    "partial output": "open(os.path.join(os.path.dirname(source), 'rest'), 'w'); raise ConvertError('refused')",
    "unprintable": "raise Shown('a \\x1b[31m name')",
    "too long": "raise ConvertError('a\\n' * 100)",
    "memory": "raise ConvertError(f'refused: {beyond()!r}')",
}


def test_findings_are_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    """A converter that really fails in one way for each of the first cases, and never for those after them."""
    functions = "".join(f"def fault{i}(source, **asked):\n    {body}\n" for i, body in enumerate(FAULTS.values()))
    program = (
        "import os, signal, sys\n"
        "from converter import ConvertError\n"
        "from tests.fuzz.converting import __main__ as main, serving, trying\n"
        "class Shown(ConvertError):\n"
        "    __str__ = Exception.__str__\n"
        "def beyond():\n"
        "    try: bytearray(1 << 40)\n"
        "    except MemoryError as error: return error\n"
        f"{functions}"
        "real = serving.try_case\n"
        "def tried(data, asked, folder, form, key):\n"
        "    trying.convert = globals().get('fault' + key.split(':')[1], trying.convert)\n"
        "    return real(data, {}, folder, form, key)\n"
        "serving.try_case = tried\n"
        "serving.Limits.__new__.__defaults__ = (1, 20.0, 1 << 29)\n"
        "sys.exit(main.main(sys.argv[1:]))\n"
    )
    kept, count = tmp_path / "kept", len(FAULTS)
    flags = ("--cases", str(count + 4), "--seed", "4", "--format", "tflite", "--keep", str(kept))
    found = run(*flags, program=("-c", program))
    assert found["status"] == 1 and found["cases"] == count + 4 and found["failed"] == count
    first = {failure["what"].partition(": ")[0]: failure["first"] for failure in found["failures"]}
    assert first == {kind: f"4:{number}" for number, kind in enumerate(FAULTS)}
    assert {p.name for p in kept.iterdir()} == {f"tflite-4-{i}{s}" for i in range(count) for s in (".tflite", ".txt")}
