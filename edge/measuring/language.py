"""How fast language models answer: each runtime in a process of its own, the runtimes in turns, on the same tokens."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edge.measuring.contest import OURS
from edge.peers import _tokens
from lite_runtime.errors import MsedgeError

__all__ = ["GENERATED", "PEERS", "PROMPT", "Answering", "answering", "holds_language"]

PROMPT, GENERATED = 512, 64
"""Tokens of the prompt and of the answer."""
_SCRIPT = Path(_tokens.__file__)
_MINUTES = 20


@dataclass(frozen=True, slots=True)
class Answering:
    """One runtime: medians over its processes. Within a process, the fastest of three answers counts."""

    name: str
    threads: int
    start: float
    """Seconds from the request for a process to the first token after a prompt of PROMPT tokens."""
    prefill: float
    """Seconds for that prompt in a process that has run it before."""
    token: float
    """Seconds for each further token."""
    memory: int
    """Peak resident memory in bytes."""
    same: int
    """How many of the first tokens are ours."""


def holds_language(path: Path) -> bool:
    """Whether a file is a bundle with a language model."""
    if path.suffix != ".mslite":
        return False
    from lite_runtime import bundle

    return "language" in bundle.read(path).metadata


def answering(
    bundle: Path,
    *,
    against: Mapping[str, Path | None] = MappingProxyType({}),
    source: Path | None = None,
    threads: int = 1,
    rounds: int = 5,
) -> list[Answering]:
    """Measure the bundle and the peers, which read their own model, or `source`, a GGUF file.

    Raises MsedgeError for a peer that is not installed or fails, and if there is no model for it.
    """
    models = {name: own or source for name, own in against.items()}
    if lacking := [name for name, model in models.items() if model is None]:
        raise MsedgeError(f"{', '.join(lacking)}: give the model's GGUF file with --source, or NAME=MODEL")
    prompt = _prompt(bundle)
    commands = {OURS: _ours(bundle, threads)}
    commands |= {name: PEERS[name](model, threads) for name, model in models.items() if model is not None}
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in commands}
    for turn in range(rounds):
        names = list(commands)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken[name].append(_measured(name, commands[name], prompt))
    ours = taken[OURS][0]["tokens"]
    return [_summary(name, threads, runs, ours) for name, runs in taken.items()]


def _prompt(bundle: Path) -> list[int]:
    """Tokens of ordinary text, or of any kind for a model without a tokenizer."""
    from lite_runtime.language import LanguageModel

    model = LanguageModel.load(bundle, positions=16)
    if model.engine.context < PROMPT + GENERATED:
        raise MsedgeError(f"expected a context of {PROMPT + GENERATED} tokens, got {model.engine.context}")
    if model.tokenizer is None:
        return [i * 7919 % model.about["vocabulary"] for i in range(PROMPT)]
    return model.tokenizer.encode(_TEXT * (PROMPT // 20), add=False)[:PROMPT]


_TEXT = (
    "A river begins as a spring in the hills. It takes up streams, turns mills, waters fields, and carries boats past"
    " towns whose people have built bridges over it for two thousand years, until it meets the sea. "
)


def _ours(bundle: Path, threads: int) -> list[str]:
    return _python(OURS, bundle, threads)


def _python(name: str, model: Path, threads: int) -> list[str]:
    # -P: keeps the script's folder off the import path, because other files there have the names of runtimes.
    return [sys.executable, "-P", "-W", "ignore", str(_SCRIPT), name, str(model), str(threads)]


def _openvino(model: Path, threads: int) -> list[str]:
    if importlib.util.find_spec("openvino_genai") is None:
        raise MsedgeError("openvino-genai is not installed; pip install openvino-genai")
    return _python("openvino-genai", model, threads)


def _onnxruntime(model: Path, threads: int) -> list[str]:
    if importlib.util.find_spec("onnxruntime_genai") is None:
        raise MsedgeError("onnxruntime-genai is not installed; pip install onnxruntime-genai")
    if not (model / "genai_config.json").is_file():
        raise MsedgeError(
            f"onnxruntime-genai: expected a folder of its model builder, got {model}; give onnxruntime-genai=FOLDER"
        )
    return _python("onnxruntime-genai", model, threads)


def _llama(model: Path, threads: int) -> list[str]:
    node = shutil.which("node")
    if node is None:
        raise MsedgeError("llama.cpp runs by node-llama-cpp, and node is not installed")
    return [node, str(_SCRIPT.with_suffix(".mjs")), str(_modules()), str(model), str(threads)]


def _modules() -> Path:
    """The folder node_modules that holds node-llama-cpp: of the variable, or of this folder or one above it."""
    named = os.environ.get("MSEDGE_NODE_MODULES")
    here = Path.cwd()
    for folder in [Path(named)] if named else [one / "node_modules" for one in (here, *here.parents)]:
        if (folder / "node-llama-cpp").is_dir():
            return folder
    raise MsedgeError(
        "llama.cpp runs by node-llama-cpp, which is not installed: npm install node-llama-cpp, and name its folder"
        " node_modules in MSEDGE_NODE_MODULES"
    )


PEERS: Mapping[str, Callable[[Path, int], list[str]]] = MappingProxyType(
    {"llama.cpp": _llama, "openvino-genai": _openvino, "onnxruntime-genai": _onnxruntime}
)
"""How a peer's process is begun."""


def _measured(name: str, command: Sequence[str], prompt: Sequence[int]) -> dict[str, Any]:
    """What a runtime's process printed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    begun = time.time() * 1e3 if command[1].endswith(".mjs") else time.perf_counter()
    whole = [*command, json.dumps(list(prompt)), str(GENERATED), repr(begun)]
    try:
        done = subprocess.run(
            whole, env=environment, capture_output=True, text=True, errors="replace", timeout=60 * _MINUTES
        )
    except subprocess.TimeoutExpired:
        raise MsedgeError(f"{name} has not ended after {_MINUTES} minutes; choose a smaller model") from None
    if done.returncode:
        raise MsedgeError(f"{name} failed in its process: {(done.stderr or done.stdout).strip()[-500:]}")
    try:
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise MsedgeError(f"{name} printed no figures in its process: {done.stdout.strip()[-500:]}") from None
    return found


def _summary(name: str, threads: int, runs: Sequence[Mapping[str, Any]], ours: Sequence[int]) -> Answering:
    def median(key: str) -> float:
        return statistics.median(float(run[key]) for run in runs)

    theirs = runs[0]["tokens"]
    same = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    return Answering(name, threads, median("start"), median("prefill"), median("token"), int(median("memory")), same)
