"""Texts to vectors: the model, what a bundle says of it (recipe), and which texts share a run (groups)."""
