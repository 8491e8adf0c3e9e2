"""Second-order against first-order optimisers, tuned by the same search: `python -m benchmarks.optimizers`."""
