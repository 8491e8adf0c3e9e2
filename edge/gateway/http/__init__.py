"""HTTP: the only files that know aiohttp."""
