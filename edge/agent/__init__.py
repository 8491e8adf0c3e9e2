"""The agent of a device: it keeps applications up to date from a fleet's repository, and proves what it installs."""
