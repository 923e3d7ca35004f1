#!/bin/sh
# Install pinned packages, only from files whose hashes are in requirements/: sh scripts/install-pins.sh .venv core torch
# Without build isolation, setuptools among them builds the project: pip install --no-deps --no-build-isolation -e .
set -eu
pip=$1/bin/pip
shift
for layer in "$@"; do
    set -- "$@" -r "requirements/$layer.txt"
    shift
done
"$pip" install -q --require-hashes --no-deps "$@"
# torch has no hash, because its bytes depend on the processor or graphics card that an index offers builds for; a build
# for graphics cards brings libraries of its own. Everything else that it needs is installed already.
case "$*" in
*/torch.txt* | */flower*) "$pip" install -q "$(grep '^torch==' constraints.txt)" ;;
esac
