"""`python -m wattwise` is the command `wattwise`."""

import sys

from wattwise.commands.main import main

sys.exit(main())
