"""How leaves are kept on disk: one file a backend, all to the contract of `base`."""
