"""The runtime on processors that this machine emulates: Linux on aarch64, 32-bit Arm and RISC-V, by qemu's user mode;
and for Windows, by Wine.

python -m tests.emulated prepare               systems with Python and NumPy, of Debian and PyPI, once, into the cache
python -m tests.emulated run SYSTEM [TARGET…]  operations, and runs of models that the tests record here
python -m tests.emulated lists                 what is equal on one target of each, row by row: writes conformance/
python -m tests.emulated models FOLDER [SYSTEM…]   outputs of bundles there and here, for the same inputs
"""
