"""`python -m wattwise_server`."""

import sys

from wattwise_server.cli import main

sys.exit(main())
