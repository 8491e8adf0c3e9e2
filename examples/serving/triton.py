"""Send requests to a gateway with NVIDIA's client, unchanged: pip install 'tritonclient[http]'.

msedge serve model.mslite
python examples/serving/triton.py 127.0.0.1:8000 model
"""

from __future__ import annotations

import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import triton_to_np_dtype


def main(address: str, model: str) -> None:
    """Send zeros of the model's shapes, four requests at once; print the outputs and the server's statistics."""
    with triton.InferenceServerClient(address, concurrency=4) as client:
        inputs = []
        for described in client.get_model_metadata(model)["inputs"]:
            shape = [max(1, size) for size in described["shape"]]  # -1: any size
            inputs.append(triton.InferInput(described["name"], shape, described["datatype"]))
            inputs[-1].set_data_from_numpy(np.zeros(shape, triton_to_np_dtype(described["datatype"])))
        asked = [client.async_infer(model, inputs, request_id=f"request-{i}") for i in range(4)]
        for one in asked:
            result = one.get_result()
            print(result.get_response()["id"], {o["name"]: o["shape"] for o in result.get_response()["outputs"]})
        (statistics,) = client.get_inference_statistics(model)["model_stats"]
        print(f"{statistics['inference_count']} rows in {statistics['execution_count']} batches so far")


if __name__ == "__main__":
    main(*sys.argv[1:])
