"""`python -m hpckit.runtime.agent LAUNCH RUN ATTEMPT`: the agent of one node."""

import sys

from hpckit.runtime.agent.agent import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
