"""From a graph and input types to a program: pure functions that plan for any target, without ctypes or mmap."""
