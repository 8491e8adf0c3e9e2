"""The demo: training, conversion, federated learning and serving, on real data."""
