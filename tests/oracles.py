"""ONNX Runtime as an oracle: sessions that compute what the standard defines, on every processor.

`edge.peers.exact` says which of its kernels do not, and changes models so that other kernels run. Optimisations fuse
Q(op(DQ …)) of int8 into products of uint8 and int8; where a test wants products of int8 and int8, `fused` asks for
them, which are exact everywhere.
"""

from __future__ import annotations

import onnx
import onnxruntime

from edge.peers.exact import SETTINGS, exact

onnxruntime.set_default_logger_severity(3)
CPU = ["CPUExecutionProvider"]


def session(
    model: onnx.ModelProto, *, optimised: bool = True, fused: bool = False, threads: int = 1
) -> onnxruntime.InferenceSession:
    """A session on the CPU. `fused`: the model has int8 activations and weights between QuantizeLinear and
    DequantizeLinear, and its products are to be computed on integers of 8 bits with signs."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    for key, value in SETTINGS.items():
        options.add_session_config_entry(key, value)
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if fused:
        options.add_session_config_entry("session.qdqisint8allowed", "1")
    else:
        model = exact(model)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=CPU)
