"""Other runtimes, as references for results and for comparisons of speed: ONNX Runtime, LiteRT and OpenVINO."""
