"""The integer models in Chromium, with one thread and two, and on emulated Cortex-M boards.

python -m tests.integers browser      digests, against the record
python -m tests.integers boards       outputs of three runs, against this machine's, of models that fit
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path

import lite_runtime
from benchmarks.browser.chromium import Chromium
from benchmarks.browser.site import serving
from converter import build
from lite_runtime.errors import MsedgeError
from tests import boards
from tests.converter.ahead import test_firmware
from tests.emulated.device import inputs_of
from tests.integers.digests import recorded
from tests.integers.models import MODELS, bundle

__all__ = ["in_browser", "on_boards"]

PAGE = b"""<!doctype html><title>-</title><script type="module">
globalThis.digests = async (name, given, threads) => {
  const { load } = await import(`./${name}/msedge.mjs`);
  const model = await load({ threads });
  const like = model.sampleInputs();
  const inputs = Object.fromEntries(Object.entries(given).map(([key, text]) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return [key, new like[key].constructor(bytes.buffer)];
  }));
  const found = [];
  for (let run = 0; run < 5; run += 1) {
    const [output] = Object.values(model.run(inputs));
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", output));
    found.push(Array.from(digest.slice(0, 8), (byte) => byte.toString(16).padStart(2, "0")).join(""));
  }
  const used = model.threads;
  model.close();
  return { found, used };
};
</script>"""


def in_browser() -> int:
    """Prints each model's verdict; returns the number of failures."""
    failed, equal, used, want = 0, {1: 0, 2: 0}, {1: 0, 2: 0}, recorded()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "index.html").write_bytes(PAGE)
        with (
            serving({"models": folder}, {}) as site,
            Chromium() as browser,
            browser.page(f"{site.origin}/models/index.html") as page,
        ):
            for name in MODELS:
                data = bundle(name)
                try:
                    build(data, folder / name)
                except MsedgeError as problem:
                    print(f"{name}: not built: {problem}")
                    continue
                inputs = inputs_of(lite_runtime.load(data).inputs())
                given = {key: base64.b64encode(array.tobytes()).decode() for key, array in inputs.items()}
                for threads in equal:
                    got = page.call("digests", name, given, threads)
                    good = set(got["found"]) == {want[name]}
                    equal[threads] += good
                    used[threads] += got["used"] == threads
                    failed += not good
                    if not good:
                        print(f"{name}, {threads} threads: {got}")
    for threads, count in equal.items():
        print(f"{threads} threads: {count} equal, {used[threads]} of them large enough to use so many")
    return failed


def on_boards() -> int:
    """Prints each board's verdict; returns the number of failures."""
    failed = 0
    for target in boards.TARGETS:
        equal, left = 0, []
        for name in MODELS:
            data = bundle(name)
            with tempfile.TemporaryDirectory() as scratch:
                made = Path(scratch) / "made"
                try:
                    built = build(data, made, target.name)
                except MsedgeError as problem:
                    left.append(f"{name} ({str(problem).partition(';')[0][:80]})")
                    continue
                found, _ = test_firmware.printed(target, made, built)
                good = found == list(test_firmware.expected(data, built))
                equal += good
                failed += not good
                if not good:
                    print(f"{target.name}: {name} differs", flush=True)
        print(f"{target.name}: {equal} of {len(MODELS)} equal; not built: {', '.join(left) or 'none'}", flush=True)
    return failed
