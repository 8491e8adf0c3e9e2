"""Rollouts as pure rules: a state machine over events, without clock, disk or socket.

plan         what an operator asks for: version, cohort, steps, judgement
cohorts      which devices are meant, and each one's place from 0 to 1
evidence     sequential tests: failures against a bound, measures against a control group
rollout      the state machine: events in, decisions out
watching     a device's report to events of one rollout
progress     how far a rollout came, as curves over time
precedence   which version a device should run, of all rollouts
"""
