"""What an update survives: processes that are killed, disks that are full, and writes that are torn by a power failure.

    python -m benchmarks.updates_faults              all of it, as root, on ext4 in image files (loop devices)
    python -m benchmarks.updates_faults --kills 20 --full 5 --torn 20

world      a signed repository with three versions, and the agent of a device that has it
tracing    a process that is killed at its n-th system call, by ptrace
images     file systems in image files, mounted by loop devices
blocks     a disk that records its blocks in the order in which they are written, by FUSE; and its contents after a
           power failure at any point
killing, filling, tearing      the three experiments
"""
