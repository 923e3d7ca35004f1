#!/bin/sh
# Make .venv-flower: Flower with the versions it pins, and after them on the path all packages of .venv.
set -eu
python=$1
extra=$2
sh scripts/make-venv.sh "$python" .venv-flower
.venv/bin/python - "$extra" <<'END'
import sys
import sysconfig
import tomllib
from pathlib import Path

(site,) = Path(".venv-flower/lib").glob("python*/site-packages")
(site / "ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{Path('src').absolute()}\n")
project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
needed = "\n".join(project["optional-dependencies"][sys.argv[1]])
Path(".venv-flower/requirements.txt").write_text(needed + "\n", encoding="utf-8")
END
.venv-flower/bin/pip install -q -r .venv-flower/requirements.txt
