"""`python -m nbl recipe=NAME ...` is `nbl-train`."""

import sys

from nbl.cli import main

if __name__ == "__main__":
    sys.exit(main())
