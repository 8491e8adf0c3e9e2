"""The server that a fleet checks in at. aiohttp is imported here alone, in `app`, `files`, `operators` and `running`.

settings     what a hub is told, from a file
fleet        devices and rollouts in memory: a report in, assignments and changes for the database out
pacing       when a device comes again
limits       how often somebody may ask
sessions     challenges, and the tokens of devices that answered them
authority    certificates of devices' keys
enrolling    new devices
app          requests of devices
operators    requests of people
files        the repository's files, by range
observing    figures for OpenTelemetry
running      start, stop, TLS
"""
