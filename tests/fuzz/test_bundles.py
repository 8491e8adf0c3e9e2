"""The fuzzer, as part of the test suite: few cases, always the same, and it must notice what it looks for."""

from __future__ import annotations

import select
from pathlib import Path

import pytest

from lite_runtime import BundleError, bundle
from tests.fuzz import bundles
from tests.fuzz.bundles import Options, case, fuzz, main, try_file
from tests.fuzz.integer_seeds import integer_bundles
from tests.fuzz.seeds import seed_bundles
from tests.fuzz.training_seeds import training_bundles


def test_seeds_run() -> None:
    for data in seed_bundles():
        assert try_file(data, "reference") == ["read", "ran"]


def test_integer_seeds_run_and_agree() -> None:
    for data in integer_bundles():
        assert try_file(data, "reference") == ["read", "ran"]
    summary = fuzz(Options(cases=1500, seed=12, workers=1, backend="compare", family="integers", threads=2))
    assert not summary.findings, "\n".join(f"case {f.case}: {f.text}" for f in summary.findings)
    assert summary.counts["ran"] > 250


def test_training_seeds_run_and_change_state() -> None:
    """Every node of every step has a definition, guarded kernels agree where they give its bits, state changes."""
    for data in training_bundles():
        assert try_file(data, "reference") == ["read", "ran"]
        assert try_file(data, "compare") == ["read", "ran"]


@pytest.mark.parametrize("backend", ["reference", "compare"])
def test_files_with_state(backend: str) -> None:
    summary = fuzz(Options(cases=200, seed=21, workers=1, backend=backend, family="training", threads=2))
    assert not summary.findings, "\n".join(f"case {f.case}: {f.text}" for f in summary.findings)
    assert summary.counts["ran"] > 30


def test_cases_are_the_same_everywhere() -> None:
    seeds = seed_bundles()
    assert [case(3, i, seeds) for i in range(50)] == [case(3, i, seed_bundles()) for i in range(50)]


def test_reading_never_fails_unmeant() -> None:
    """Reading alone, in this process: BundleError or a bundle that writes back to the same meaning."""
    seeds = seed_bundles()
    read = 0
    for i in range(1500):
        try:
            held = bundle.read(case(5, i, seeds))
        except BundleError:
            continue
        read += 1
        again = bundle.write(None, held.signatures, metadata=held.metadata, golden=held.golden)
        assert bundle.read(again, thorough=True).signatures.keys() == held.signatures.keys()
    assert 300 < read < 1200


def test_two_thousand_files() -> None:
    summary = fuzz(Options(cases=2000, seed=11, workers=1, backend="reference"))
    assert not summary.findings, "\n".join(f"case {f.case}: {f.text}" for f in summary.findings)
    assert summary.counts["cases"] == 2000
    assert summary.counts["ran"] > 200
    assert summary.counts["refused"] > 500


@pytest.mark.parametrize("fault", ["crash", "hang", "error"])
def test_findings_are_recorded_and_the_run_goes_on(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A worker that really fails at case 5: by a signal, by silence, by an unexpected exception."""
    program, hangs = tmp_path / "broken.py", tmp_path / "hangs"

    def readable(handle: int, patience: float) -> bool:
        """Patience ends when the worker, the only one, has begun to hang: no machine is too busy for this test."""
        while not select.select([handle], [], [], 0.05)[0]:
            if hangs.exists() and not select.select([handle], [], [], 0)[0]:
                hangs.unlink()
                return False
        return True

    program.write_text(
        "import os, signal, sys, time\n"
        "from tests.fuzz import bundles\n"
        "real = bundles.try_file\n"
        "def broken(data, backend, threads=1, seed=0):\n"
        f"    if seed == 5 and {fault!r} == 'crash': os.kill(os.getpid(), signal.SIGSEGV)\n"
        f"    if seed == 5 and {fault!r} == 'hang': open({str(hangs)!r}, 'w').close(); time.sleep(600)\n"
        "    if seed == 5: raise ZeroDivisionError('case five')\n"
        "    return real(data, backend, threads, seed)\n"
        "bundles.try_file = broken\n"
        "sys.exit(bundles.main(sys.argv[1:]))\n"
    )
    monkeypatch.setattr(bundles, "PROGRAM", ("-c", program.read_text()))
    monkeypatch.setattr(bundles, "_readable", readable)
    kept = tmp_path / "kept"
    workers = "2" if fault == "crash" else "1"
    arguments = ["--cases", "20", "--seed", "4", "--workers", workers, "--backend", "definitions", "--keep", str(kept)]
    assert main(arguments) == 1
    files = [p.name for p in sorted(kept.iterdir())]
    assert files == [f"{fault}-4-5.mslite", f"{fault}-4-5.txt"]
    assert (kept / f"{fault}-4-5.mslite").read_bytes() == case(4, 5, seed_bundles())
    line = capfd.readouterr().out.splitlines()[-1]
    assert line.startswith("cases 20, ")
    word = {"crash": "crashes 1", "hang": "hangs 1", "error": "unexpected errors 1"}[fault]
    assert word in line


def test_a_worker_that_cannot_start_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "PROGRAM", ("-c", "raise SystemExit('no luck')"))
    with pytest.raises(RuntimeError, match="no luck"):
        fuzz(Options(cases=4))
