"""What a deployed model is like before it ships: measured, and written to its bundle."""
