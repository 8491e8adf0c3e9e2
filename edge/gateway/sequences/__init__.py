"""Sequences: requests that continue one another, with the model's state kept between them."""
