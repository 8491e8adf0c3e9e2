"""What devices and servers exchange: packed trees, differences of models, and the update transforms."""
