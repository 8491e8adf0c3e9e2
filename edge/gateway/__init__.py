"""Models over HTTP: the Open Inference Protocol, batches, versions, personal models."""
