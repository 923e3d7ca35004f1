"""Supervisor that restarts a program whenever it ends.

A killed SuperNode, for one, is rejected until its old session has ended, and needs several tries.

Run: python -m discretion.flower.supervise flower-supernode --superlink …
"""

import signal
import subprocess
import sys
import time

PAUSE = 3.0  # seconds before a restart


def main(words: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        process = subprocess.Popen(words)
        try:
            code = process.wait()
        finally:
            process.terminate()  # does nothing to a process that has ended
        sys.stderr.write(f"{words[0]} ended with code {code}; restarting it in {PAUSE:g} s\n")
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1:])
