"""Known vulnerabilities of the pinned packages, as pip-audit finds them: `make audit-pins`.

The exit code is 0 only if every pin was looked up and nothing is known of any; 1 if something is known; 2 if
some pin could not be looked up, which says nothing about it. `make` turns both into 2.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

FILES = ["constraints.txt", *(f"requirements/{name}.txt" for name in ("flower", "flower-sim", "tools"))]


class Audit(NamedTuple):
    checked: int  # pins that were looked up
    known: list[str]  # vulnerabilities
    unchecked: list[str]  # pins, or files of them, and why


def audit(file: str, pip_audit: Sequence[str]) -> Audit:
    """Look up every pin of a file."""
    options = ["--disable-pip", "--no-deps", "--progress-spinner=off", "--format=json", "-r", file]
    done = subprocess.run([*pip_audit, *options], capture_output=True, text=True)
    try:
        rows = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        said = (done.stderr.strip() or "no answer").splitlines()[-1]
        return Audit(0, [], [f"{file}: {said}"])
    known = [
        f"{row['name']} {row['version']}: {found['id']}; mended in: {', '.join(found['fix_versions']) or '–'}"
        for row in rows
        for found in row.get("vulns", [])
    ]
    checked = sum("vulns" in row for row in rows)
    skipped = [f"{row['name']}: {row['skip_reason']}" for row in rows if "vulns" not in row]
    if skipped and not checked:  # offline, pip-audit says of every package that it is not on PyPI
        skipped = [f"{file}: none of its {len(skipped)} pins was found. Is there a connection to PyPI?"]
    return Audit(checked, known, skipped)


def main(pip_audit: Sequence[str], files: Sequence[str]) -> int:
    audits = [audit(file, pip_audit) for file in files]
    known = sorted({line for each in audits for line in each.known})
    unchecked = sorted({line for each in audits for line in each.unchecked})
    for line in (*known, *unchecked[:3], *(["…"] if len(unchecked) > 3 else [])):
        print(line)
    print(f"{sum(each.checked for each in audits)} pins were looked up.")
    if known:
        print(f"{len(known)} vulnerabilities are known.")
    if unchecked:
        print(f"NOT CHECKED: {len(unchecked)} pins, or files of them. Nothing is known about these.")
    elif not known:
        print("No vulnerability is known of any of them.")
    return 1 if known else 2 if unchecked else 0


if __name__ == "__main__":
    tool = Path(sys.executable).with_name("pip-audit")
    sys.exit(main([str(tool)], FILES))
