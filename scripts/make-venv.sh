#!/bin/sh
# Make a virtual environment; if Debian's Python lacks venv, install it or, without root, say how.
set -eu
python=$1
folder=$2
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    echo "Discretion needs Python 3.11 or newer; found: $("$python" --version 2>&1 || echo none)." >&2
    echo "Set another with: make demo PYTHON=/path/to/python3.11" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    package="$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}-venv")')"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -qq
        apt-get install -y -qq "$package"
    else
        echo "This Python has no venv module. Install it with: sudo apt-get install $package" >&2
        exit 1
    fi
fi
[ -x "$folder/bin/pip" ] || "$python" -m venv "$folder"
