"""A bare aiohttp handler that calls msedge's runtime directly and does nothing else, to measure our own overhead.

    python bare_app.py MODEL.mslite PORT THREADS
"""

from __future__ import annotations

import asyncio
import gc
import sys

import numpy as np
import orjson
from aiohttp import web

import lite_runtime


async def main(path: str, port: int, threads: int) -> None:
    """Serve until killed."""
    model = lite_runtime.load(path, threads=threads)
    (value,), (result,) = model.inputs(), model.outputs()
    shape, dtype = tuple(d if isinstance(d, int) else 1 for d in value.shape or ()), np.dtype(value.dtype)
    for _ in range(3):
        model.run({value.name: np.zeros(shape, dtype)})

    async def handle(request: web.Request) -> web.Response:
        body = await request.read()
        if request.content_type == "application/json":
            x = np.asarray(orjson.loads(body)["inputs"][0]["data"], dtype).reshape(shape)
            y = model.run({value.name: x})[result.name]
            return web.Response(
                body=orjson.dumps({"data": y}, option=orjson.OPT_SERIALIZE_NUMPY), content_type="application/json"
            )
        x = np.frombuffer(body, dtype).reshape(shape)
        return web.Response(body=model.run({value.name: x})[result.name].tobytes())

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v2/models/model/infer", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    gc.collect()
    gc.freeze()
    await asyncio.Event().wait()


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
