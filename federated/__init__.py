"""Learning from a fleet without seeing its data: personal models, meta-learning, Flower as transport."""
