"""Writing: from rows of a running episode to shards on disk."""
