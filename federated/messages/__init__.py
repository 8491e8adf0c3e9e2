"""What devices and servers exchange: packed trees, differences of models, and the transformations of an update."""
