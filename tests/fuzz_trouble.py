"""A fuzzer worker in which case 3 crashes, case 5 hangs and case 6 fails."""

from __future__ import annotations

import os
import sys
import time

if __name__ == "__main__":
    _, first, step, stop = map(int, sys.argv[1:])
    for number in range(first, stop, step):
        print(f"begin {number} case {number}", flush=True)
        if number == 3:
            os.abort()
        if number == 5:
            time.sleep(1000)
        failure = ', "failure": "wrong"' if number == 6 else ""
        print(f'end {{"tags": {{"kind": ["drawn"]}}{failure}}}', flush=True)
