"""A device takes part in federated tasks of its hub, when it is idle, charging and on a network that costs nothing.

tasks         offers, and the work on a task
populations   what a device works with: the bundles that run, its examples
"""
