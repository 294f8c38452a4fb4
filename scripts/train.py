"""Play a recipe: `python scripts/train.py recipe=neural_es`; `--help` lists what there is."""

import sys

from nbl.cli import main

if __name__ == "__main__":
    sys.exit(main())
