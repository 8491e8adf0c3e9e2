"""Tests of bundles in a process of their own, and health checks of applications."""

from __future__ import annotations

import hashlib
import http.server
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edge.agent.checking import trying
from edge.agent.checking.health import Address, Context, Fresh, Function, Program, is_loopback, judged, run
from edge.agent.checking.trying import Limits, Trial, asked, tried
from lite_runtime import bundle
from lite_runtime.bundle import signing
from lite_runtime.graph import Graph, Node, Value
from lite_runtime.updates.release import File, Requirements
from tests.edge.agent.shelf import model

ANY = Requirements()


def here(tmp_path: Path, data: bytes) -> tuple[Path, File]:
    path = tmp_path / "m.mslite"
    path.write_bytes(data)
    return path, File(len(data), hashlib.sha256(data).hexdigest(), bundle.opened(data).digest, ())


def refused(found: Trial) -> tuple[str, str]:
    assert found.refusal is not None
    return found.refusal.kind, found.refusal.reason


def test_a_bundle_that_is_right(tmp_path: Path) -> None:
    found = tried(*here(tmp_path, model(2.0)), ANY, Limits())
    assert found.refusal is None and found.samples == 1 and found.latency_ms > 0


def test_another_bundle_than_the_release_says(tmp_path: Path) -> None:
    path, file = here(tmp_path, model(2.0))
    found = tried(path, file._replace(digest="0" * 64), ANY, Limits())
    assert refused(found) == ("broken", f"m.mslite: expected the bundle digest {'0' * 16}…, got {file.digest[:16]}…")


def test_signatures(tmp_path: Path) -> None:
    private, public = signing.new_key("release")
    (tmp_path / "k.key").write_bytes(private)
    (tmp_path / "k.pub").write_bytes(public)
    limits = Limits(reference=False, keys=(str(tmp_path / "k.pub"),))
    kind, reason = refused(tried(*here(tmp_path, model(2.0)), ANY, limits))
    assert kind == "broken" and "got one without a signature" in reason
    signed = signing.signed(model(2.0), tmp_path / "k.key")
    assert tried(*here(tmp_path, signed), ANY, limits).refusal is None


def test_a_latency_cannot_be_judged_without_a_sample(tmp_path: Path) -> None:
    x, y = Value("x", "float32", (1,)), Value("y", "float32", (1,))
    data = bundle.write(None, {"predict": Graph((x,), (y,), (Node("Neg", ("x",), ("y",)),), {})})
    assert tried(*here(tmp_path, data), ANY, Limits()).refusal is None
    kind, reason = refused(tried(*here(tmp_path, data), Requirements(latency_ms=5), Limits()))
    assert kind == "refused" and "expected a golden sample" in reason


def test_a_bundle_that_never_ends(tmp_path: Path) -> None:
    """A loop of as many turns as the runtime allows, each with work."""
    condition, (x, y) = Value("c", "bool", ()), (Value(name, "float32", (512, 512)) for name in "xy")
    body = Graph(
        (Value("i", "int64", ()), condition, x),
        (Value("go", "bool", ()), y),
        (Node("Identity", ("c",), ("go",)), Node("MatMul", ("x", "w"), ("y",))),
        {"w": np.eye(512, dtype=np.float32)},
    )
    loop = Node("Loop", ("turns", "yes", "x"), ("y",), {"body": body})
    constants = {"turns": np.array(1 << 62, np.int64), "yes": np.array(True)}
    given = np.zeros((512, 512), np.float32)
    data = bundle.write(
        None, {"predict": Graph((x,), (y,), (loop,), constants)}, golden={"predict": ({"x": given}, {"y": given})}
    )
    begun = time.monotonic()
    kind, reason = refused(tried(*here(tmp_path, data), ANY, Limits(seconds=5)))
    assert kind == "broken" and "takes more than 5 s" in reason and time.monotonic() - begun < 15


CRASHES = {
    "crash": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "its test crashed (SIGSEGV)"),
    "silent": ("pass", "its test ended without an answer (exit code 0)"),
    "endless": ("import time\nwhile True: time.sleep(1)", "it takes more than 1 s"),
    "noise": ("import os\nwhile True: os.write(1, b'x' * 1000)", "its test was ended"),
    "other": ("print('[1, 2]')", "its test answered something else"),
    "deaf": ("import os; os.close(0)", "its test ended without an answer"),
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_process_that_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, words = CRASHES[name]
    (tmp_path / "hostile_child.py").write_text(code)
    monkeypatch.setattr(trying, "CHILD", "hostile_child")
    monkeypatch.syspath_prepend(str(tmp_path))
    kind, reason = asked({"do": "test"}, Limits(seconds=1.0))["refusal"]
    assert kind == "broken" and words in reason


def test_a_process_that_ends_before_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pipe is broken, which is not a fault of the disk."""
    monkeypatch.setattr(sys, "executable", "/bin/true")
    for _ in range(5):
        kind, reason = asked({"do": "test", "path": "x" * (1 << 20)}, Limits(seconds=5.0))["refusal"]
        assert kind == "broken" and "its test ended without an answer (exit code 0)" in reason


def test_no_module_comes_from_the_folder_the_agent_is_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('hostile')")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    assert tried(*here(tmp_path / "m", model(2.0)), ANY, Limits(reference=False)).refusal is None


def test_keys_that_this_device_lacks_say_nothing_about_a_bundle(tmp_path: Path) -> None:
    limits = Limits(reference=False, keys=(str(tmp_path / "none.pub"),))
    kind, reason = refused(tried(*here(tmp_path, model(2.0)), ANY, limits))
    assert kind == "failed" and "checks.keys" in reason and "none.pub" in reason


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such limit")
def test_memory_is_limited(tmp_path: Path) -> None:
    x, y = Value("x", "float32", (1,)), Value("y", "float32", (1 << 28,))
    graph = Graph((x,), (y,), (Node("Expand", ("x", "shape"), ("y",)),), {"shape": np.array([1 << 28], np.int64)})
    data = bundle.write(
        None, {"predict": graph},
        golden={"predict": ({"x": np.zeros(1, np.float32)}, {})},
    )  # fmt: skip
    path, file = here(tmp_path, data)
    kind, reason = refused(tried(path, file, ANY, Limits(memory=300 << 20, reference=False)))
    assert kind == "too-large" and "memory" in reason
    kind, _ = refused(tried(path, file, ANY, Limits(reference=False), free=400 << 20))
    assert kind == "failed"  # this machine is short of memory now: the version may be tried again


def test_the_process_ends_with_the_agent(tmp_path: Path) -> None:
    """Its standard input ends with the agent, however that ends."""
    path, file = here(tmp_path, model(2.0))
    code = (
        "import sys, os; from pathlib import Path; from edge.agent.checking import trying\n"
        "trying._answer = lambda child, until: (print(child.pid, flush=True), os.kill(os.getpid(), 9))\n"
        f"trying.asked({{'do': 'test', 'path': {str(path)!r}, 'digest': {file.digest!r}, 'keys': [],"
        " 'backend': 'reference', 'latency_ms': 0, 'memory': 0}, trying.Limits())\n"
    )
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    child = int(done.stdout)
    for _ in range(200):
        if not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]:
            return
        time.sleep(0.1)
    raise AssertionError("the child goes on")


# -- health ------------------------------------------------------------------------------------------------------------

CONTEXT = Context("keywords", "2", Path("/slots/b/files"), since=1000.0)


def test_a_program_says_how_it_is(tmp_path: Path) -> None:
    seen = "import os; print(os.environ['MSEDGE_VERSION'], os.environ['MSEDGE_FOLDER'])"
    assert run((sys.executable, "-c", seen), CONTEXT, 20) == (0, "2 /slots/b/files")
    assert Program((sys.executable, "-c", "pass")).problem(CONTEXT) == ""
    wrong = Program((sys.executable, "-c", "print('no microphone'); raise SystemExit(3)")).problem(CONTEXT)
    assert wrong.endswith("exited with 3: no microphone")
    slow = Program((sys.executable, "-c", "import time; time.sleep(60)"), 0.2).problem(CONTEXT)
    assert slow.endswith("did not end within 0.2 s")
    assert "No such file" in judged([Program((str(tmp_path / "none"),))], CONTEXT)
    assert "$HOME" in run(("/bin/echo", "$HOME"), CONTEXT, 20)[1]  # no shell reads it


def test_a_program_that_leaves_another_in_the_background(tmp_path: Path) -> None:
    """As a script does that starts a service: it has ended well, though the service has its output still."""
    code = "import subprocess; subprocess.Popen(['/bin/sleep', '20']); print('up')"
    begun = time.monotonic()
    assert run((sys.executable, "-c", code), CONTEXT, 60) == (0, "up")
    assert time.monotonic() - begun < 15


def test_a_program_that_says_much_takes_little_memory() -> None:
    import tracemalloc

    code = "import sys\nfor _ in range(2000): sys.stdout.write('x' * 100_000)\nprint('end')"
    tracemalloc.start()
    found = run((sys.executable, "-c", code), CONTEXT, 120)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found[0] == 0 and found[1].endswith("xend") and len(found[1]) <= 300 and peak < 4 << 20


def test_a_file_that_is_fresh(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    assert "No such file" in Fresh(str(path)).problem(CONTEXT)
    path.touch()
    assert Fresh(str(path)).problem(CONTEXT) == ""
    os.utime(path, (time.time() - 20, time.time() - 20))
    assert "was not changed since the switch" in Fresh(str(path)).problem(CONTEXT._replace(since=time.time() - 5))
    back = time.time() + 3600  # the switch was before the clock was set back
    os.utime(path, (time.time() - 5, time.time() - 5))
    assert Fresh(str(path)).problem(CONTEXT._replace(since=back)) == ""
    os.utime(path, (1, 1))
    assert "expected at most 60 s" in Fresh(str(path)).problem(CONTEXT)


@pytest.fixture
def server() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/ok?x=1" else 503)
            self.end_headers()
            self.wfile.write(b"warming up")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_address[1]}"
        made.shutdown()
        thread.join()


def test_an_address_of_this_machine(server: str) -> None:
    assert Address(f"{server}/ok?x=1").problem(CONTEXT) == ""
    assert Address(f"{server}/").problem(CONTEXT).endswith("answered 503: warming up")
    assert "expected an address of this machine" in Address("http://example.org/").problem(CONTEXT)
    assert "refused" in Address("http://127.0.0.1:1/").problem(CONTEXT)
    assert is_loopback("http://[::1]:80/x") and not is_loopback("https://127.0.0.1/") and not is_loopback("http://[")


def test_functions() -> None:
    assert judged([Function(lambda c: None), Function(lambda c: True), Function(lambda c: "")], CONTEXT) == ""
    assert judged([Function(lambda c: False)], CONTEXT) == "False"
    assert judged([Function(lambda c: 1 / 0)], CONTEXT) == "ZeroDivisionError: division by zero"
