"""Native code: targets, the build and the cache of kernels, and this machine's tuning choices."""
