"""Options of Flower's programs in the folder deploy are options of the pinned Flower."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from discretion.flower.project import environment, tool

SERVICES = yaml.safe_load(Path("deploy/compose.yaml").read_text(encoding="utf-8"))["services"]
PROGRAMS = {"flower-superlink": ("server", "superlink"), "flower-supernode": ("node", "node")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_flower_knows_the_options_of_services_and_units(program: str) -> None:
    service, unit = PROGRAMS[program]
    text = Path(f"deploy/systemd/discretion-{unit}.service").read_text(encoding="utf-8")
    (started,) = re.findall(rf"^ExecStart=\S*{program}(.*?[^\\])$", text, re.M | re.S)
    asked = set(re.findall(r"(?<!\S)--[\w-]+", " ".join([started, *SERVICES[service]["command"]])))
    known = subprocess.run([tool(program), "--help"], env=environment(), capture_output=True, text=True)
    assert len(asked) >= 4 and asked <= set(re.findall(r"--[\w-]+", known.stdout))
