"""Plans a program from a graph and input types: pure functions for any target, without ctypes or mmap."""
