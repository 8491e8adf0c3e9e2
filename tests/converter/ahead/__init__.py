"""Models built ahead of time: what Node computes is compared with this machine's kernels."""
