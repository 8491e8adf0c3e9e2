"""Second-order and first-order optimisers, tuned by the same search: `python -m benchmarks.optimizers`."""
