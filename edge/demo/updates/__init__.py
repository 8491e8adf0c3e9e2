"""The demo of a fleet that learns and updates itself: what devices see changes, and they learn it together.

scene        real data, divided among devices; what changes on a third of them
maker        the first version: trained, signed, offered
device       one simulated device: the agent as it is on real ones, a program that uses the model, learning
crew         a process of devices, and what it is asked
conduct      the whole demo: hub, loop and devices in processes of their own
"""
