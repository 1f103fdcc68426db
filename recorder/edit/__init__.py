"""Editing: new shards that stand for old ones, or say what no longer counts; nothing that was recorded is changed."""
