"""A script that `edge/measuring/language.py` runs as a separate process: it measures a language model.

Arguments: runtime, model, threads, tokens of a prompt (JSON), number of tokens to generate, `perf_counter` when the
process was requested. Prints one JSON object: seconds from then to the first token (`start`), seconds of the prompt
(`prefill`) and of each token after it (`token`), peak bytes of resident memory (`memory`), the tokens. Imports only
what this runtime needs. `_tokens.mjs` is the same for runtimes of Node.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

REPEATS = 3
Measured = dict[str, Any]


def _msedge(model: str, threads: int, prompt: list[int], count: int, begun: float) -> Measured:
    from lite_runtime.language import LanguageModel

    loaded = LanguageModel.load(model, threads=threads, positions=len(prompt) + count)
    start, prefill, token = 0.0, [], []
    tokens: list[int] = []
    for _ in range(REPEATS):
        loaded.forget()
        tokens, times = [], [perf_counter()]
        for piece in loaded.generate(tokens=prompt, max_tokens=count, logit_bias=_endless(loaded.about["stop"])):
            times.append(perf_counter())
            tokens += piece.tokens
        start = start or times[1] - begun
        prefill.append(times[1] - times[0])
        token.append((times[-1] - times[1]) / (len(times) - 2))
    return {"start": start, "prefill": min(prefill), "token": min(token), "tokens": tokens}


def _endless(stop: list[int]) -> dict[int, float]:
    """A bias against tokens that end the answer, so that all runtimes generate as many."""
    return dict.fromkeys(stop, float("-inf"))


def _openvino_genai(model: str, threads: int, prompt: list[int], count: int, begun: float) -> Measured:
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # it would send data to its vendor
    import numpy as np
    import openvino_genai as genai
    from openvino import Tensor

    schedule = genai.SchedulerConfig()
    schedule.enable_prefix_caching = False  # the prompt is computed each time
    pipeline = genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads, scheduler_config=schedule)
    ids = np.array([prompt], np.int64)
    inputs = genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
    options = genai.GenerationConfig(max_new_tokens=count, do_sample=False, ignore_eos=True)
    start, prefill, token = 0.0, [], []
    found: Any = None
    for _ in range(REPEATS):
        times = [perf_counter()]

        def note(_: int, times: list[float] = times) -> genai.StreamingStatus:
            times.append(perf_counter())
            return genai.StreamingStatus.RUNNING

        found = pipeline.generate(inputs, options, _streamer(genai, note))
        start = start or times[1] - begun
        prefill.append(times[1] - times[0])
        token.append((times[-1] - times[1]) / (len(times) - 2))
    return {"start": start, "prefill": min(prefill), "token": min(token), "tokens": list(found.tokens[0])}


def _streamer(genai: Any, note: Callable[[int], Any]) -> Any:
    """An object whose method the pipeline calls with each token."""

    class Streamer(genai.StreamerBase):  # type: ignore[misc]
        def write(self, token: int) -> Any:
            return note(token)

        def end(self) -> None:
            """Nothing is held back."""

    return Streamer()


def _onnxruntime_genai(model: str, threads: int, prompt: list[int], count: int, begun: float) -> Measured:
    import onnxruntime_genai as genai

    config = genai.Config(model)
    options = {"session_options": {"intra_op_num_threads": threads, "inter_op_num_threads": 1}}
    config.overlay(json.dumps({"model": {"decoder": options}}))
    loaded = genai.Model(config)
    asked = genai.GeneratorParams(loaded)
    length = len(prompt) + count
    asked.set_search_options(max_length=length, min_length=length, do_sample=False)
    start, prefill, token = 0.0, [], []
    tokens: list[int] = []
    for _ in range(REPEATS):
        generator = genai.Generator(loaded, asked)
        tokens, times = [], [perf_counter()]
        generator.append_tokens(prompt)
        for _ in range(count):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            times.append(perf_counter())
        start = start or times[1] - begun
        prefill.append(times[1] - times[0])
        token.append((times[-1] - times[1]) / (len(times) - 2))
    return {"start": start, "prefill": min(prefill), "token": min(token), "tokens": tokens}


RUNTIMES: dict[str, Callable[[str, int, list[int], int, float], Measured]] = {
    "msedge": _msedge,
    "openvino-genai": _openvino_genai,
    "onnxruntime-genai": _onnxruntime_genai,
}


def main(name: str, model: str, threads: str, prompt: str, count: str, begun: str) -> None:
    """Measure and print."""
    found = RUNTIMES[name](model, int(threads), json.loads(prompt), int(count), float(begun))
    print(json.dumps({**found, "memory": _peak()}))


def _peak() -> int:
    """Peak bytes of this process alone: `ru_maxrss` would include the parent's memory at the time of the fork."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main(*sys.argv[1:])
