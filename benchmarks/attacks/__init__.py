"""Adversarial attacks beside the Adversarial Robustness Toolbox."""
