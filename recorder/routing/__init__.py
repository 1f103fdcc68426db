"""Routing: which storage keeps which leaf, why, and at what cost."""
