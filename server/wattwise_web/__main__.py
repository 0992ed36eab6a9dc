"""`python -m wattwise_web`: the same as `wattwise web`."""

import sys

from wattwise_web.command import main

sys.exit(main())
