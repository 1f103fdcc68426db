"""Replaying: the recorded actions in the environment again, and a verdict on what comes back."""
