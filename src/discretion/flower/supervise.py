"""Keep a program running: a killed SuperNode, for one, is refused until its old session is over.

Run: python -m discretion.flower.supervise flower-supernode --superlink …
"""

import signal
import subprocess
import sys
import time

PAUSE = 3.0  # seconds between tries


def main(words: list[str]) -> None:
    def end(*_: object) -> None:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        process = subprocess.Popen(words)
        try:
            code = process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
        sys.stderr.write(f"it ended with {code}; starting it again in {PAUSE:g} s\n")
        time.sleep(PAUSE)


if __name__ == "__main__":
    main(sys.argv[1:])
