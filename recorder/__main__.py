"""`python -m recorder`, the same as the command `recorder`."""

import sys

from recorder.cli import main

if __name__ == "__main__":  # a process that this one spawns imports this file too
    sys.exit(main())
