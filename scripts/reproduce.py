"""Reproduce a paper's figures: `python scripts/reproduce.py suite=ensemble scale=smoke`; alone it lists the suites."""

import sys

from nbl.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
