#!/bin/sh
# Make .venv-flower: Flower with the versions it pins, and after them on the path all packages of .venv.
# sh scripts/make-flower-venv.sh python3.11 flower flower-sim
set -eu
python=$1
shift
sh scripts/make-venv.sh "$python" .venv-flower
.venv/bin/python - <<'END'
import sysconfig
from pathlib import Path

(site,) = Path(".venv-flower/lib").glob("python*/site-packages")
(site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path('src').absolute()}\n")
END
sh scripts/install-pins.sh .venv-flower "$@"
