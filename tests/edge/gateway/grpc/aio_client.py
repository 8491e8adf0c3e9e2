"""NVIDIA's asyncio client against a gateway with Triton's example models: `python -m … ADDRESS` prints "passed"."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton


def _inputs(a: np.ndarray, b: np.ndarray) -> list[Any]:
    made = [triton.InferInput(f"INPUT{i}", list(x.shape), "INT32") for i, x in enumerate((a, b))]
    for one, x in zip(made, (a, b), strict=True):
        one.set_data_from_numpy(x)
    return made


async def _requests(count: int) -> AsyncIterator[dict[str, Any]]:
    for i in range(count):
        one = triton.InferInput("INPUT", [1, 1], "INT32")
        one.set_data_from_numpy(np.full((1, 1), i, np.int32))
        yield {
            "model_name": "simple_sequence", "inputs": [one], "request_id": str(i), "sequence_id": 5,
            "sequence_start": i == 0, "sequence_end": i == count - 1,
        }  # fmt: skip


async def check(address: str) -> None:
    """Raises AssertionError for a wrong answer."""
    async with triton.InferenceServerClient(address) as client:
        assert await client.is_server_live() and await client.is_server_ready()
        assert await client.is_model_ready("simple")
        assert (await client.get_server_metadata()).name == "msedge"
        assert (await client.get_model_metadata("simple")).name == "simple"
        assert (await client.get_model_config("simple")).config.name == "simple"
        assert len((await client.get_model_repository_index()).models) == 5
        rng = np.random.default_rng()
        pairs = rng.integers(-1000, 1000, (30, 2, 1, 16), dtype=np.int32)
        found = await asyncio.gather(*(client.infer("simple", _inputs(a, b)) for a, b in pairs))
        for (a, b), one in zip(pairs, found, strict=True):
            np.testing.assert_array_equal(one.as_numpy("OUTPUT0"), a + b)
        assert (await client.get_inference_statistics("simple")).model_stats[0].inference_count >= 30
        got = []
        async for result, error in client.stream_infer(_requests(40)):
            assert error is None, error
            got.append((result.get_response().id, int(result.as_numpy("OUTPUT")[0, 0])))
        assert got == [(str(i), i + (i == 0)) for i in range(40)]
        await client.unload_model("simple_string")
        assert not await client.is_model_ready("simple_string")
        await client.load_model("simple_string")


if __name__ == "__main__":
    asyncio.run(check(sys.argv[1]))
    print("passed")
