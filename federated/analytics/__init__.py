"""Federated analytics: statistics of what devices hold, from sums of bounded contributions.

A *question* (`base.Question`) says what each device contributes: a vector of bounded norm. A *panel* (`panel.Panel`)
asks it, checks the answers, adds them up, by a secure sum if wanted, and adds noise that the accountant counts.
"""
