"""`python -m oplab` is the same as the command `oplab`."""

import sys

from oplab.cli import main

sys.exit(main())
