"""Record of a run for the OpenDP deployments registry, tier 3, and the extension for budgets of each client.

The registry (github.com/opendp/deployments-registry-data) takes one YAML file for each deployment and allows
no other fields than its own. It has one epsilon for everybody: here that is the largest which a client spent.
The second file is the same record with the field `privacy_loss.privacy_parameters_by_group`, a proposal.
"""

import re
from pathlib import Path
from typing import Any

from discretion.audit import statements
from discretion.audit.verdicts import contradicted
from discretion.errors import InputError
from discretion.export.by_class import largest, spending
from discretion.files import write_safely
from discretion.report import numbers
from discretion.report.run_group import title
from discretion.runs.read import Run, read_run

NOT_STATED = "Not stated"
EXTENSION = "privacy_parameters_by_group"
UNITS = {"client": "Client-level", "record": "Record-level"}


def write(folder: Path, out: str) -> list[Path]:
    """Write a run's record to `out`, and beside it the record with the proposed extension; return both."""
    run = read_run(folder)
    record = record_of(run)
    path = Path(out or f"{_slug(run)}.yaml")
    more = path.with_name(f"{path.stem}_by_group{path.suffix}")
    write_safely(path, to_yaml(record).encode())
    write_safely(more, to_yaml(extended(record, run)).encode())
    return [path, more]


def record_of(run: Run) -> dict[str, Any]:
    """Return the record of a deployment; refuse runs that are none, or that keep no promise.

    Guarantees:
        No client is named, and nothing tells who took part. What a run does not know is "Not stated".
    """
    _require_deployment(run)
    limits = dict(statements.unpromised([run]))
    deployment = {
        "basic": _basic(run),
        "dp_variant": _variant(run, limits),
        "privacy_loss": _loss(run, limits),
        "deployment_model": _model(run),
        "accounting": _accounting(run),
        "implementation": _implementation(run, limits),
        "administrative": _administrative(run),
    }
    slug = _slug(run).replace("_", "-")
    return {"url_slug": slug, "status": "Draft", "tier": 3, "deployment": deployment}


def _basic(run: Run) -> dict[str, Any]:
    about, method = run.config.about, title(run.plan.method)
    return {
        "name": about.project or f"{method} on {run.about.data}",
        "data_curators": [about.operator or NOT_STATED],
        "intended_use": about.purpose or NOT_STATED,
        "data_product_type": "Machine learning model",
        "data_product_region": NOT_STATED,
        "description": f"A model ({run.model}) trained by federated learning with the method {method} on "
        f"{run.about.data} of {len(run.population):,} clients, in {run.plan.rounds:,} rounds.",
        "publication_date": run.about.created[:10],
    }


def _variant(run: Run, limits: dict[str, str]) -> dict[str, Any]:
    unprotected = ("Budgets and sizes.", "The test records.", "Time.")
    return {
        "variant_name": "Approximate DP",
        "data_domain": f"The records of {len(run.population):,} clients ({run.about.data}). Each client has "
        "a privacy budget of its own.",
        "unprotected_quantities": " ".join(f"{lead} {limits[lead]}" for lead in unprotected),
    }


def _loss(run: Run, limits: dict[str, str]) -> dict[str, Any]:
    certificate = run.certificate
    return {
        "privacy_unit": UNITS[certificate.unit],
        "privacy_unit_details": f"{statements.protected(certificate.unit, certificate.adjacency)}. "
        f"{limits['One person in several clients.']}",
        "privacy_parameters": {"epsilon": largest(run), "delta": float(certificate.delta.max())},
        "privacy_parameters_details": "Epsilon is the largest that any client spent of its own budget. "
        f"{by_group(run)}",
    }


def _model(run: Run) -> dict[str, Any]:
    against = statements.against(run.certificate).items()
    actors = [f"{statements.OBSERVERS[who].capitalize()}: {words}." for who, words in against]
    return {
        "model_name": "Federated",
        "model_name_details": statements.protection(run.certificate),
        "actors": " ".join(actors),
        "release_type": "Many releases",
        "release_type_details": f"A model after each of {run.plan.rounds:,} rounds; all of them are counted "
        f"together. {statements.lasting(run)}",
        "data_source_type": "Static",
        "data_source_type_details": "Each client trains on the same records in every round.",
        "access_type": "Non-interactive",
        "access_type_details": "Nobody can query the clients’ records.",
    }


def _accounting(run: Run) -> dict[str, Any]:
    return {
        "post_processing": "The server’s momentum, learning rate and averages of models are computed from "
        "what is released.",
        "composition": f"Counted by {run.certificate.accountant} over every round of the plan, for each "
        "client on its own.",
    }


def _implementation(run: Run, limits: dict[str, str]) -> dict[str, Any]:
    return {
        "preprocessing_and_hyperparameter_tuning": limits["Tuning."],
        "mechanisms": f"Clipped updates with Gaussian noise. {statements.taking_part(run.treatment.coming)} "
        f"{statements.noise(run.certificate)} Discretion {run.about.discretion}. {limits['The program.']}",
        "justification": NOT_STATED,
    }


def _administrative(run: Run) -> dict[str, Any]:
    return {
        "sources": f"Plan (SHA-256): {run.certificate.plan}",
        "notes": "Made from plan, certificate and ledger by `discretion export --to registry`. Each budget "
        "class is in the proposed extension of this record.",
        "registry_authors": [run.config.about.operator or NOT_STATED],
    }


def extended(record: dict[str, Any], run: Run) -> dict[str, Any]:
    """Return the record with the proposed field: an entry for each group of privacy units with one budget."""
    groups = [
        {
            "group": each.name,
            "units": each.clients,
            "epsilon_allowed": each.budget,
            "epsilon_spent": each.spent,
            "delta": each.delta,
        }
        for each in spending(run)
    ]
    inner = record["deployment"]
    loss = inner["privacy_loss"] | {EXTENSION: groups}
    return record | {"deployment": inner | {"privacy_loss": loss}}


def by_group(run: Run) -> str:
    """Return what each budget class was allowed and has spent, in one sentence."""
    parts = [
        f"{each.name}: {numbers.count(each.clients, 'client')}, {each.spent:g} spent"
        for each in spending(run)
    ]
    return f"By budget: {'; '.join(parts)}."


def _require_deployment(run: Run) -> None:
    problems = {
        "it is a simulation (train.randomness is seeded)": run.simulated,
        "it is not finished": not run.finished,
        run.broken: bool(run.broken),
        f"it {statements.NOBODY.lower()}": run.certificate.promises_nothing,
        contradicted(run): bool(contradicted(run)),
        "clients overspend their budgets": len(run.certificate.overspent) > 0,
    }
    if found := [why for why, holds in problems.items() if holds]:
        raise InputError(
            f"{run.folder} is no deployment for the registry: {'; '.join(found)}. Export a finished run with "
            'train.randomness = "cryptographic" that keeps every budget.'
        )


def _slug(run: Run) -> str:
    """Return a file name as the registry wants it: small letters, digits and underscores."""
    name = run.config.about.project or f"{run.plan.method} {run.about.data}"
    return re.sub(r"[^a-z0-9]+", "_", f"{name} {run.about.created[:4]}".lower()).strip("_")


def to_yaml(record: dict[str, Any], indent: str = "") -> str:
    """Return YAML in blocks, each text in double quotes, which every reader of YAML reads alike."""
    lines = ""
    for key, value in record.items():
        if isinstance(value, dict):
            lines += f"{indent}{key}:\n{to_yaml(value, indent + '  ')}"
        elif isinstance(value, list):
            lines += f"{indent}{key}:\n" + "".join(_item(each, indent) for each in value)
        else:
            lines += f"{indent}{key}: {_scalar(value)}\n"
    return lines


def _item(value: Any, indent: str) -> str:
    if isinstance(value, dict):
        return f"{indent}  - {to_yaml(value, indent + '    ').lstrip()}"
    return f"{indent}  - {_scalar(value)}\n"


def _scalar(value: str | int | float) -> str:
    if isinstance(value, str):
        return '"' + "".join(_sign(sign) for sign in value) + '"'
    text = repr(value)
    if "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # else YAML 1.1 takes it for text
    return ".inf" if text == "inf" else text


def _sign(sign: str) -> str:
    if sign in '"\\':
        return f"\\{sign}"
    return sign if sign.isprintable() else f"\\U{ord(sign):08x}"
