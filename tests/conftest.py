"""Fixtures for every test: the shared models and data if available, and one thorough profile for Hypothesis."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# What tests write into a cache is theirs alone, as the cache demands; some systems let a user's group write.
os.umask(0o022)

# Modules that tests share state things too; without this their asserts would be none under `python -O`.
pytest.register_assert_rewrite("tests.federated", "tests.fuzz", "tests.lite_runtime")

# Two busy cores make deadlines a matter of luck; CI draws the same examples every time.
settings.register_profile("here", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("here"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Programs for many devices run on virtual ones, and compile quickly rather than well; JAX asks when it starts. A small
# transformer's step for eight devices takes 0.7 s to compile with these, 2.0 with the first two of the four alone.
QUICKLY = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
os.environ.setdefault("XLA_FLAGS", f"--xla_force_host_platform_device_count=8 {QUICKLY}")

# Workers share the cores, and threads of BLAS wait for each other busily: with two processes on two cores a product of
# [144, 64] and [64, 144] takes 0.2 ms of processor time with one thread, 7 with two. NumPy asks when it is loaded, in
# workers and in processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

ROOT = Path(__file__).parents[1]
SHARED = ROOT.parent / "shared"
PAGE = os.sysconf("SC_PAGE_SIZE")

# Compiled programs are kept between runs, the small ones too: to write one takes no time beside its compilation, and
# the tests of operators' training take half the time. Other workers and the processes that tests start read them too.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def pytest_configure(config: pytest.Config) -> None:
    """Compile kernels once, before workers start: each would otherwise compile all of them."""
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        from lite_runtime.native import build

        build.prepare()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting 14,000 tests makes 700,000 objects, none of them garbage before the end.

    Python's collector looked at them again and again: 5 s in every worker. Frozen, they are never looked at.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Slow tests run first, while other workers have tests left; at the end they would run alone.
    items.sort(key=lambda item: "slow" not in item.keywords)
    marked = [item for item in items if "gpu" in item.keywords]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no accelerator that JAX can reach"))


def _has_gpu() -> bool:
    import jax

    return jax.default_backend() != "cpu"


@pytest.fixture(scope="module", autouse=True)
def _memory_goes_back() -> Iterator[None]:
    """Compiled programs of a module's tests are of no use to the next module: a worker would grow to gigabytes.

    What is alive after that are imported modules and session fixtures. They are frozen, so that the next module's
    collection takes milliseconds instead of half a second.
    """
    yield
    _give_back()
    gc.freeze()


GROWTH = 200 << 20
"""Bytes a worker may grow by within a module before compiled programs are dropped: some modules compile hundreds."""
_before = 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, object, object]:
    global _before
    result = yield
    if (now := _resident()) > _before + GROWTH:
        _give_back()
        _before = _resident()
    else:
        _before = min(now, _before)
    return result


def _resident() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


def _give_back() -> None:
    if (jax := sys.modules.get("jax")) is not None:
        jax.clear_caches()
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real models; tests that need it skip where it is absent."""
    return _shared("models")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets; tests that need it skip where it is absent."""
    return _shared("data")


def _shared(name: str) -> Path:
    folder = SHARED / name
    if not folder.is_dir():
        pytest.skip(f"no {folder}")
    return folder
