"""`python -m hpckit`: hands over to the command line; it must not do anything else."""

import sys

from hpckit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
