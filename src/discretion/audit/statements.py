"""What a certificate says, in sentences: who is protected from whom, and what the numbers are worth."""

from discretion.accounting import Certificate

PROMISED = {
    "public": "from whoever sees the released models, but neither from other clients nor from the server",
    "clients": "from other clients and from whoever sees the released models",
    "server": "from the server, from other clients and from whoever sees the released models",
}


def protection(certificate: Certificate) -> str:
    if certificate.promises_nothing:
        why = f": {reading(certificate)}" if certificate.reads != "nothing" else ""
        return f"No privacy: this plan protects nobody from anybody{why}."
    unit = "one client's whole data" if certificate.unit == "client" else "each record of a client"
    adjacency = certificate.adjacency.replace("_", "/")
    over = len(certificate.overspent)
    but = f"; but not within budget: {over} of {len(certificate.clients)} clients overspend" if over else ""
    return f"Protects {unit} ({adjacency}) {PROMISED[certificate.promise]}{but}."


def reading(certificate: Certificate) -> str:
    """What of the clients' data decides who trains, and how it is read; empty where nothing does."""
    if certificate.reads == "nothing":
        return ""
    how = "read raw" if certificate.promises_nothing else "read with noise that is paid for"
    return f"who trains depends on {certificate.reads}, {how}"


def paper_mode(certificate: Certificate) -> str:
    """What the paper's own formula is worth, where that was asked for; empty where it was not."""
    if certificate.accounting != "paper":
        return ""
    if len(certificate.overspent):
        return "Paper mode: not the stated guarantee."
    return "Paper mode: noise by the paper's own formula; the true epsilon is within every budget."
