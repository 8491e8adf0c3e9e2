"""Native code: targets, the build and the cache of kernels, and what this machine was tuned to."""
