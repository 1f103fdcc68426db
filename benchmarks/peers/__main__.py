"""Make the environments of peers, and say which version each has."""

import sys

from benchmarks.peers import PEERS, PeerError, version_of

for name in sys.argv[1:] or PEERS:
    try:
        print(f"{name}: {version_of(name)}", flush=True)
    except PeerError as error:
        print(f"{name}: skipped: {error}", flush=True)
