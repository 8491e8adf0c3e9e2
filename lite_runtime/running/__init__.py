"""Runs plans: sessions, the executor, worker threads, profiles, and the cache of programs for later starts."""
