"""The demo: training, conversion, a fleet and a gateway, on real data."""
