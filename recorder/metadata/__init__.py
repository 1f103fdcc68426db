"""Metadata of spaces: given, found, checked, and the kinds that follow from it."""
