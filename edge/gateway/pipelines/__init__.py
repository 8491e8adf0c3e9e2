"""What is done to requests before a model and to its outputs after it, as the bundle declares."""
