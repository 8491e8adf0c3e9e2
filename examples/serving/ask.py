"""Send requests to a gateway with msedge's own client, which needs only the standard library and NumPy.

msedge serve model.mslite
python examples/serving/ask.py http://127.0.0.1:8000 model [DEVICE]
"""

from __future__ import annotations

import sys

import numpy as np

import msedge


def main(url: str, model: str, device: str = "") -> None:
    """Send zeros of the model's shapes; print the outputs and which version answered: the device's own or the shared
    one."""
    with msedge.Client(url) as client:
        if not client.ready(model):
            sys.exit(f"{model!r} is not ready at {url}; it has the models {client.models()}")
        inputs = {}
        for described in client.metadata(model)["inputs"]:
            if described["datatype"] == "BYTES":
                sys.exit(f"{model!r} takes files or texts; camera.py sends images")
            shape = [max(1, size) for size in described["shape"]]  # -1: any size
            inputs[described["name"]] = np.zeros(shape, _dtype(described["datatype"]))
        for name, array in client.infer(model, inputs, device=device, timeout=1.0).items():
            print(f"{name}: {array.dtype} {list(array.shape)} {array.ravel()[:5]}")
        print(f"answered by {client.notes.get('personal', 'the shared model')}")


def _dtype(datatype: str) -> str:
    """NumPy's name for a datatype of the protocol: FP32 is float32."""
    return datatype.replace("UINT", "uint").replace("INT", "int").replace("FP", "float").replace("BOOL", "bool")


if __name__ == "__main__":
    main(*sys.argv[1:])
