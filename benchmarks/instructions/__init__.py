"""Instructions that a model's run takes on emulated 64-bit Arm: msedge's against ONNX Runtime's and LiteRT's wheels.

python -m benchmarks.instructions FOLDER [--json FILE]

Emulation says nothing about time, but counts exactly: qemu runs each program twice, and the difference is divided by
the number of runs between. All use one thread, the same inputs and Debian's Python; each model runs by the peer of its
own format. Needs `apt-get install qemu-user mmdebstrap gcc` and, once, the network for the peers' wheels.
"""
