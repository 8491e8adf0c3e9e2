"""What bundles, federated rounds and language models reveal of their training data, measured."""
