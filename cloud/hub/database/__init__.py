"""What a hub must not lose: devices, their events, rollouts, tokens, telemetry, the audit log.

engine       what the rest needs of a database; SQLite in a file is the default
postgres     the same on PostgreSQL (the only module that imports psycopg)
opening      an address to a database, with its tables up to date
schema       the tables, as steps from one version to the next
writing      one writer: changes that wait are stored together, and are answered when they are on disk
devices rollouts loops tokens audit telemetry   statements by subject
"""
