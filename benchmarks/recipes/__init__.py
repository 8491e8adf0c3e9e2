"""Recipes of the models of `cloud.zoo`: files that `msedge train` runs, and what comes of them."""
