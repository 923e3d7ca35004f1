#!/bin/sh
# Test the planning core, which needs no torch, on each of these versions of Python that is installed here:
# sh scripts/test-core.sh 3.12 3.13
set -eu
for version in "$@"; do
    python=python$version
    if ! "$python" -c '' 2>/dev/null; then
        echo "The planning core was not tested on Python $version: no $python is installed here."
        continue
    fi
    folder=.venv-$version
    sh scripts/make-venv.sh "$python" "$folder"
    sh scripts/install-pins.sh "$folder" core test
    "$folder/bin/pip" install -q --no-deps --no-build-isolation -e .
    echo "The planning core on Python $version:"
    # one of the tests left out needs torch, the other cvxpy
    "$folder/bin/python" -m pytest -p no:cacheprovider tests/plan tests/accounting tests/ledger tests/methods \
        --ignore=tests/plan/test_selection_rules.py --ignore=tests/methods/test_selection_solver.py
done
