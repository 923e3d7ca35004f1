"""JSON form of a certificate."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from discretion.accounting.certificate import Certificate, Spending
from discretion.errors import PlanError
from discretion.jsonfile import dump, parse, record_of
from discretion.plan.plan import ADVERSARIES, Adversary

Format = Literal["discretion-certificate/3"]
FORMAT: Format = "discretion-certificate/3"

SpendingRecord = record_of(Spending, epsilon=(list[list[float]], ...))
CertificateRecord = record_of(
    Certificate,
    format=(Format, ...),
    dropout=(float, 0.0),
    epsilon=(dict[Adversary, list[float]], ...),
    spending=(SpendingRecord, ...),
)


def certificate_to_json(certificate: Certificate) -> str:
    """Return the certificate as JSON text."""
    record = {"format": FORMAT} | _plain(vars(certificate))
    if not certificate.dropout:
        del record["dropout"]
    return dump(
        record | {"epsilon": _plain(certificate.epsilon), "spending": _plain(vars(certificate.spending))}
    )


def _plain(values: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }


def certificate_from_json(text: str) -> Certificate:
    """Read a certificate from JSON text; raise `PlanError` for anything that is not exactly one."""
    record = dict(parse(text, CertificateRecord, "certificate"))
    clients, epsilon, curve = record["clients"], record["epsilon"], dict(record["spending"])
    lengths = {
        len(column) for column in (record["budget"], record["delta"], record["spent"], *epsilon.values())
    }
    if lengths != {len(clients)} or set(epsilon) != set(ADVERSARIES):
        raise PlanError(
            f"not a Discretion certificate: found columns of {sorted(lengths)} entries against "
            f"{', '.join(epsilon)}; expected {len(clients)} entries each, one for each client, "
            f"against {', '.join(ADVERSARIES)}"
        )
    tall = {len(curve[name]) for name in ("classes", "budget", "epsilon")}
    wide = {len(row) for row in (curve["rounds"], *curve["epsilon"])}
    if len(tall) != 1 or len(wide) != 1:
        raise PlanError(
            "not a Discretion certificate: its spending must have one row for each budget class, with "
            "one entry for each of its rounds in every row"
        )
    del record["format"]
    record["epsilon"] = {name: np.array(epsilon[name]) for name in ADVERSARIES}
    record["spending"] = Spending(**_arrays(curve))
    return Certificate(**_arrays(record))


def _arrays(record: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, list) else value for name, value in record.items()}
