"""Source formats in, `onnx_ir.Model` out."""
