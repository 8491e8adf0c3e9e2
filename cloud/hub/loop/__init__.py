"""From what devices tell to a new version of their model: watching, learning, judging, signing, rolling out.

drift        whether what devices tell has changed: a sequential test
plan         what an operator asks for: a TOML file
cycle        the state machine: events in, the step that is due out
doing        what a step has: the hub, the repository, a folder
learning     the step that learns, on devices or in the cloud
steps        what the others do; all may be repeated
watching     when a cycle begins
lineage      from devices and their data to the release
runner       the loop: reads events, does steps, writes events
"""
