"""Runs and prints the worked examples and checks what they give, as `ndpool demo` does."""

import sys

from ndpool._examples import run_all

if __name__ == "__main__":
    sys.exit(run_all() > 0)
