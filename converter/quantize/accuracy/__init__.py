"""What quantisation costs: metrics, sensitivity of layers, and the search under an accuracy budget."""
