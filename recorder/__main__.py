"""`python -m recorder`, the same as the command `recorder`."""

import sys

from recorder.cli import main

sys.exit(main())
