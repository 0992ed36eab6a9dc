"""`python -m wattwise_server`."""

import sys

from wattwise_server.commands.serve import main

sys.exit(main())
