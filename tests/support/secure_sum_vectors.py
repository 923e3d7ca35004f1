"""Test vectors of the secure sum: sums whose keys, seeds and numbers are given, and all bytes that follow.

python tests/support/secure_sum_vectors.py writes tests/secure_sum/vectors.json anew. Another implementation
takes the private keys, `facts`, `whole` and `random` (what a client draws, in order: a seed for each
member, then a fresh key for each member), and has to come to everything else.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.secure_sum.contribution import contribute
from discretion.secure_sum.roster import roster_text
from discretion.secure_sum.unmasking import survivors_request, unmask
from support.secure_sums import PLAN, answers, bytes_from, numbers, party, roster, terms

FILE = Path(__file__).parents[1] / "secure_sum" / "vectors.json"
CLIENTS, SURVIVORS = 5, 4


def vector(bits: int) -> dict[str, Any]:
    """Return one sum of five clients, one of whom drops out, with two members."""
    of = terms(CLIENTS, round_=7, pool=1, size=6, bits=bits)
    whole = numbers(of, bits, 2 ** (bits - 1) // CLIENTS)
    drawn: dict[str, list[str]] = {name: [] for name in whole}
    sent = []
    for name, row in whole.items():
        random = bytes_from(f"draws of {name}, {bits} bits")

        def noted(size: int, random: Any = random, name: str = name) -> bytes:
            drawn[name].append(random(size).hex())
            return bytes.fromhex(drawn[name][-1])

        sent.append(contribute(of, name, party(name).identity, row, noted))
    request = survivors_request(of, sent[:SURVIVORS])
    replies = answers(of, request)
    return {
        "facts": {
            **{"run": of.run, "plan": PLAN.hex(), "round": of.round, "pool": of.pool, "size": of.size},
            **{"bits": bits, "colluding": of.colluding, "least": of.least},
        },
        "terms": of.digest.hex(),
        "committee": [member.client for member in of.committee],
        "whole": {name: row.tolist() for name, row in whole.items()},
        "random": drawn,
        "contributions": {each.letter.sender: each.to_bytes().hex() for each in sent},
        "request": request.hex(),
        "answers": {name: reply.hex() for name, reply in replies.items()},
        "sum": unmask(of, sent[:SURVIVORS], replies).tolist(),
    }


def vectors() -> str:
    consortium = Ed25519PrivateKey.from_private_bytes(bytes_from("consortium")(32))
    people = [party(name) for name in roster(CLIENTS).contacts]
    content = {
        "identity keys": {one.name: one.identity.private_bytes_raw().hex() for one in people},
        "agreement keys": {one.name: one.agreement.private_bytes_raw().hex() for one in people},
        "consortium key": consortium.private_bytes_raw().hex(),
        "roster": json.loads(roster_text(roster(CLIENTS), consortium)),
        "sums": [vector(32), vector(64)],
    }
    return json.dumps(content, indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(vectors(), encoding="utf-8")
