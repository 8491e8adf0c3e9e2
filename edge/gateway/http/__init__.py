"""HTTP: the only modules that use aiohttp."""
