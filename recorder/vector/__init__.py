"""Vector environments: one segment for each sub-environment and episode, out of rows that hold them all."""
