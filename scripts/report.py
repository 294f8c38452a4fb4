"""Compare runs, with tests and a page to look at: `python scripts/report.py runs`; `--help` tells the rest."""

import sys

from nbl.report.command import main

if __name__ == "__main__":
    sys.exit(main())
