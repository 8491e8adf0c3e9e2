"""Flower as transport: the only part that imports flwr, whose interfaces change between minor versions."""
