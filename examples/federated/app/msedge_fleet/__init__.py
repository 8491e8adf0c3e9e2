"""msedge over Flower."""
