"""Several servers in one run: aggregators between the devices and the root."""
