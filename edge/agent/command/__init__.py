"""The agent as a command.

tables       values of the configuration, checked without other packages
starting     an agent from its configuration, and what all commands share
__main__     the commands by the standard library: `python -m edge.agent.command`, and the zipapp
"""
