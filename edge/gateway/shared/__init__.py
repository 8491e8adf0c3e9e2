"""Tensors in shared memory of clients on the same machine: Triton's system shared memory extension."""
