"""HTTP servers beside one another: the same model, the same load."""
