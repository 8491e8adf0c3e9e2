"""msedge, ONNX Runtime Web and LiteRT.js in one browser: see `__main__`."""
