"""The accuracy cost of quantisation: metrics, sensitivity of layers, and the search under an accuracy budget."""
