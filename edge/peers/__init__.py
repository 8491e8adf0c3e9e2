"""Other runtimes, as oracles and as competitors: ONNX Runtime, LiteRT and OpenVINO."""
