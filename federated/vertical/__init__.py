"""Two parties with different features of the same people: their common people, and a model over both parts."""
