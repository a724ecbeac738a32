"""`python -m tokenspeed` is the `tokenspeed` command."""

from __future__ import annotations

import sys

from tokenspeed.cli import main

if __name__ == "__main__":
    sys.exit(main())
