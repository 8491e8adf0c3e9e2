"""Ensembles: graphs of models as data, served under a name of their own."""
