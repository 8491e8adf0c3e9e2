"""The intermediate representation: `onnx_ir.Model` with ONNX semantics at one opset, its rules, shapes and upgrades."""
