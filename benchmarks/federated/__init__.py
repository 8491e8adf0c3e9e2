"""Benchmarks of federated learning: gains of personal methods, published tables, devices per second."""
