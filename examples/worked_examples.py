"""Run, check and print the worked examples, like `ndpool demo`."""

import sys

from ndpool._examples import run_all

if __name__ == "__main__":
    sys.exit(run_all() > 0)
