"""Federated tasks whose devices come through the hub.

task         what a server of a federated run asks for, and which device may take part: pure rules
exchange     that server's end: messages over the hub's operator API
"""
