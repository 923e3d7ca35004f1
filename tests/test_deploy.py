"""The folder deploy: images, compose file and systemd units say what docs/operating.md promises of them."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from console import understand
from images import DOCKERFILE, Stage, ancestors, environment, stages

STAGES = stages(DOCKERFILE.read_text(encoding="utf-8"))
TARGETS = ("node", "guard", "server")
COMPOSE: dict[str, Any] = yaml.safe_load(Path("deploy/compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
UNITS = sorted(Path("deploy/systemd").glob("*.service"))
GUIDE = Path("docs/operating.md").read_text(encoding="utf-8")


def steps(stage: Stage, kind: str) -> list[str]:
    return [step.text for each in ancestors(stage, STAGES) for step in each.steps if step.kind == kind]


def mounts(service: str) -> dict[str, tuple[str, str]]:
    """Return what a service mounts: by its path inside, the source and whether it is read-only."""
    rows = [volume.split(":") for volume in SERVICES[service]["volumes"]]
    return {row[1]: (row[0], row[2] if len(row) > 2 else "rw") for row in rows}


def users() -> dict[str, str]:
    """Return the number of each user that images have."""
    made = [line.split() for text in steps(STAGES["base"], "RUN") for line in text.split("&&")]
    return {words[-1]: words[2] for words in made if words[:2] == ["useradd", "--uid"]}


def beside(program: str) -> str | None:
    return shutil.which(str(Path(sys.executable).with_name(program)))


# images


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_runs_as_a_user_without_rights_and_has_no_build_tools(target: str) -> None:
    stage = STAGES[target]
    assert [each.name for each in ancestors(stage, STAGES)] == ["base", target]
    assert steps(stage, "USER") == [users()[{"node": "relay", "server": "superlink"}.get(target, target)]]
    assert [step.kind for step in stage.steps if step.kind in ("USER", "RUN", "COPY")][-1] == "USER"
    installed = " ".join(steps(stage, "RUN"))
    assert re.findall(r"apt-get install -y --no-install-recommends (.*?) *&&", installed) == ["python3"]
    (builder,) = (step.words[0].removeprefix("--from=") for step in stage.steps if step.kind == "COPY")
    assert "pip uninstall -y -q setuptools pip" in " ".join(steps(STAGES[builder], "RUN"))
    assert stage.last("HEALTHCHECK") and stage.last("ENTRYPOINT")


def test_everything_that_is_installed_is_pinned() -> None:
    assert STAGES["base"].base == "debian:bookworm-slim"
    lines = [
        line.split()
        for stage in STAGES.values()
        for step in stage.steps
        if step.kind == "RUN"
        for line in step.text.split("&&")
    ]
    (built,) = {tuple(words[2:]) for words in lines if words[:2] == ["pip", "install"]}
    assert built == ("-q", "--no-deps", "--no-build-isolation", ".")
    pinned = {
        layer for words in lines if words[:2] == ["sh", "scripts/install-pins.sh"] for layer in words[3:]
    }
    assert pinned == {"node", "core", "torch", "flower"}
    assert all(Path(f"requirements/{layer}.txt").exists() for layer in pinned)


def test_a_node_has_flower_and_neither_discretion_nor_torch() -> None:
    (made,) = (step.text for step in STAGES["build-node"].steps if step.kind == "RUN")
    assert "install-pins.sh /opt/discretion node " in made
    assert not any("src" in step.text for step in STAGES["build-node"].steps)


def test_what_is_copied_exists_and_is_sent_to_the_engine() -> None:
    sent = {line[1:] for line in Path(".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word.rstrip("/")
        for stage in STAGES.values()
        for step in stage.steps
        if step.kind == "COPY" and not step.text.startswith("--from")
        for word in step.words[:-1]
    }
    assert copied == sent and all(Path(path).exists() for path in copied)


def test_the_guards_command_is_one_of_the_command_line() -> None:
    guard = STAGES["guard"]
    entry, command = guard.last("ENTRYPOINT"), guard.last("CMD")
    assert entry and command
    understand(" ".join([*entry.words, *command.words]))


def test_variables_of_a_stage_are_those_of_its_base_too() -> None:
    values = environment(STAGES["build-guard"], STAGES)
    assert values["PATH"].startswith("/opt/discretion/bin:")
    assert values["PIP_EXTRA_INDEX_URL"] == ""


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    if not (hadolint := beside("hadolint")):
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, str(DOCKERFILE)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


# the compose file


def test_the_guard_has_no_network_and_its_files_are_its_own() -> None:
    assert SERVICES["guard"]["network_mode"] == "none" and "networks" not in SERVICES["guard"]
    assert "ports" not in SERVICES["guard"] and "ports" not in SERVICES["node"]
    own = mounts("guard")
    assert own["/records"][1] == own["/etc/discretion/GUARD.toml"][1] == "ro"
    shared = {source for source, _ in own.values()} & {source for source, _ in mounts("node").values()}
    assert shared == {"door"}
    assert not {source for source, _ in mounts("server").values()} & {
        source for name in ("guard", "node") for source, _ in mounts(name).values()
    }


def test_the_door_is_the_guards_and_the_relay_may_enter() -> None:
    options = COMPOSE["volumes"]["door"]["driver_opts"]["o"]
    assert options == f"uid={users()['guard']},gid={users()['relay']},mode=0750"


@pytest.mark.parametrize("name", TARGETS)
def test_a_service_may_do_as_little_as_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["build"]["target"] in STAGES and Path("deploy", service["build"]["context"]).samefile(".")
    assert Path(service["build"]["dockerfile"]) == DOCKERFILE
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"] and service["restart"] == "unless-stopped"
    assert "user" not in service and "privileged" not in service
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_paths_are_those_of_the_policy_in_the_guide() -> None:
    text = re.search(r"for containers.*?```toml\n(.*?)```", GUIDE, re.S)
    assert text
    policy = tomllib.loads(text[1])
    inside = mounts("guard")
    assert str(Path(policy["folder"]).parent) in inside and str(Path(policy["socket"]).parent) in inside
    assert str(Path(policy["data"]["path"]).parent) in inside and policy["group"] in users()
    assert f'--node-config=guard="{policy["socket"]}"' in SERVICES["node"]["command"]
    health = STAGES["guard"].last("HEALTHCHECK")
    assert health and policy["socket"] in health.text


# systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_understands_the_unit(unit: Path, tmp_path: Path) -> None:
    analyse = shutil.which("systemd-analyze")
    if not analyse:
        pytest.skip("systemd-analyze is not installed")
    text = unit.read_text(encoding="utf-8")
    for program in re.findall(r"^ExecStart=(\S+)", text, re.M):
        place = tmp_path / Path(program).name
        place.write_text("#!/bin/sh\n")
        place.chmod(0o755)
        text = text.replace(program, str(place))
    (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [analyse, "verify", "--man=no", "--recursive-errors=no", str(tmp_path / unit.name)],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_guards_unit_has_no_network_and_another_user_than_the_nodes() -> None:
    guard, node, superlink = (unit.read_text(encoding="utf-8") for unit in UNITS)
    assert "PrivateNetwork=true" in guard and "RestrictAddressFamilies=AF_UNIX" in guard
    assert len(set(re.findall(r"^User=(\w+)$", guard + node + superlink, re.M))) == 3
    assert all("NoNewPrivileges=true" in unit and "ProtectSystem=strict" in unit for unit in (guard, node))
    (command,) = re.findall(r"^ExecStart=/opt/discretion/bin/(discretion .*)$", guard, re.M)
    understand(command)
