"""`python -m longspan` is the `longspan` command."""

import sys

from longspan.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
