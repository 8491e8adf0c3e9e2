"""Flower as transport: the only part that knows flwr, whose interfaces change between minor versions."""
