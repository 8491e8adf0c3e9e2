"""Federated learning measured: what personal methods gain on people, published tables, how many devices a second."""
