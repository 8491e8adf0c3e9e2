"""The server that a fleet checks in at. aiohttp is only in `app`, `files`, `operators`, `running` and `people`.

settings     what a hub is told, from a file
fleet        devices and rollouts in memory: a report in, assignments and changes for the database out
pacing       when a device comes again
limits       how often somebody may ask
sessions     challenges, and the tokens of devices that answered them
authority    certificates of devices' keys
enrolling    new devices
app          requests of devices
bodies       what people's requests say
operators    requests of people
tasks        federated tasks: devices, and the runs whose messages they answer
loops        events of loops, and people's approvals
people/      who they are, what they search, the repository and the pages for them
files        the repository's files, by range
observing    figures for OpenTelemetry
running      start, stop, TLS
"""
