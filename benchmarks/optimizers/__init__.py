"""Second order against first order, each tuned by the same search: `python -m benchmarks.optimizers`."""
