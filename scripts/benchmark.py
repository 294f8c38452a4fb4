"""Time a round: `python scripts/benchmark.py`; `--help` lists the sections."""

import sys

from nbl.benchmark.cli import main

if __name__ == "__main__":
    sys.exit(main())
