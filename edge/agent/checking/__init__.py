"""Whether a version may run here: tests of its bundles before the switch, and its health on trial.

trying     starts a process for each test, with limits of time and memory
child      that process: digest, signatures, golden samples, latency, memory
health     checks in a trial: a program, a file, an address of this machine, a function
"""
