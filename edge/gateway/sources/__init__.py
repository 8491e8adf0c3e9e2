"""Where models come from: files, folders and registries, and how they are read while serving."""
