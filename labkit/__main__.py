"""``python -m labkit``: the same as the ``labkit`` command."""

import sys

from labkit.cli import main

if __name__ == "__main__":  # a worker process of the MCP server loads this module as well
    sys.exit(main())
