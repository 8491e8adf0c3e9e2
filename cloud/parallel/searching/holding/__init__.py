"""Memory of a device during a step: the schedule of kernels, live values, constraints of the integer program."""
