"""Spaces: as JSON, compared, and as the structure of what is recorded."""
