"""Conversions: a recording as what others read, and back."""
