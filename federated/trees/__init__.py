"""Gradient boosted trees over devices' data, from sums of histograms of gradients."""
