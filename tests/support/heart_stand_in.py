"""The example of four hospitals, on a stand-in of its data: as many records, drawn at random."""

import json
import shutil
from pathlib import Path

import numpy as np

from discretion.tasks.catalogue import FACTS

EXAMPLE = Path(__file__).parents[2] / "examples" / "hospitals"
README = (EXAMPLE / "README.md").read_text(encoding="utf-8")
RECORDS = {"cleveland": 303, "hungary": 294, "switzerland": 123, "long-beach": 200}


def copy_example(folder: Path) -> None:
    """Copy the example's settings, without what a walk through it may have left there."""
    for name in ("config.toml", "people.csv", "accuracy.toml"):
        shutil.copy(EXAMPLE / name, folder)


def write_stand_in(cache: Path) -> None:
    """Write a stand-in of heart-disease into a cache folder, under the stamp of files that were verified.

    Other processes read it, too, so the pinned checksum cannot be replaced: only size and stamp must fit.
    """
    ((name, (size, digest)),) = FACTS["heart-disease"]["files"].items()
    rng, rows = np.random.default_rng(0), []
    for hospital, count in RECORDS.items():
        for age, pain in zip(rng.integers(30, 80, count), rng.integers(1, 5, count), strict=True):
            ill = int(age / 20 + pain + rng.normal() > 5)
            rows.append(f"{hospital},{age},1,{pain},95,233,1,2,99,0,2,3,0,6,{ill}")
    path = cache / "heart-disease" / name
    path.parent.mkdir()
    path.write_text("\n".join(rows).ljust(size - 1) + "\n", encoding="ascii")
    stamp = {"source": "a stand-in", "files": {name: [path.stat().st_mtime_ns, digest]}}
    (path.parent / "verified.json").write_text(json.dumps(stamp))
