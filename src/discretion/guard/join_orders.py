"""Join orders as a guard reads them: the plan in one, and one that its ledger has on record."""

from discretion.clients import messages
from discretion.clients.messages import Join
from discretion.errors import MessageError, PlanError, Refusal, StorageError
from discretion.guard.plan_size import UNREADABLE
from discretion.plan.plan import Plan


def plan_in(order: Join, body: bytes) -> tuple[Plan, int]:
    """Return the plan in the body of a join order, and the client's number in it."""
    try:
        plan = Plan.from_json(body.decode())
    except (PlanError, UnicodeDecodeError):
        raise Refusal(UNREADABLE, "plan") from None
    if plan.digest() != order.plan:
        raise Refusal("the plan's digest is not the one in the order", "plan")
    if order.client not in plan.clients:
        raise Refusal("the plan does not list this client", "plan")
    return plan, plan.clients.index(order.client)


def stored(run: str, message: bytes) -> tuple[Join, bytes]:
    """Return the join order that was stored, and its plan; name the fault where it cannot be read."""
    try:
        join, body = messages.decode_order(message)
        if not isinstance(join, Join):
            raise MessageError(f"it is a {join.kind} order")
        Plan.from_json(body.decode())
        return join, body
    except (MessageError, PlanError, UnicodeDecodeError) as found:
        problem = str(found)
    raise StorageError(
        f"the order by which run {run} was joined cannot be read from the ledger: {problem}. It is damaged, "
        "or of another version of Discretion: go back to that version, or end this run at the operator.",
        f"the order by which it joined run {run} is damaged, or of another version of Discretion",
    )
