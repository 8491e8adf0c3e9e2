"""Damaged and hostile model files through the converter: see `__main__`."""
