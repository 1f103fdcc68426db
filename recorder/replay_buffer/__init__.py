"""The zarr replay buffer: `data/<key>` with one row a step, and `meta/episode_ends`; made, continued, read, copied."""
