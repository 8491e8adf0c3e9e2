"""What a device holds while a step runs: the schedule of kernels, live memory, rows of the integer programme."""
