"""Running a plan: sessions, the executor, worker threads, profiles, and programs kept for later starts."""
