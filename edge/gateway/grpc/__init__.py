"""The Open Inference Protocol over gRPC, as Triton and KServe define it, in front of the same gateway as HTTP."""
