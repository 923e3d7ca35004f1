"""Documents on one run for readers outside: a record for a registry, answers to an evaluator."""

from pathlib import Path
from typing import Literal

from discretion.export import nist, opendp_registry

Document = Literal["registry", "nist"]


def write_document(to: Document, run: Path, out: str) -> list[Path]:
    """Write the document on a run to `out`, or to a name of its own; return the files."""
    return opendp_registry.write(run, out) if to == "registry" else [nist.write(run, out)]
