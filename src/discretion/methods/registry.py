"""The methods in a table: a new one is a file beside this and a row in it."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from discretion.methods import (
    adaptive_clipping,
    concert,
    dp_fedavg,
    fedavg,
    fedpcs,
    fedpcs_adaptive,
    gdpfed,
    idp_fedavg,
    levels,
    pfa,
    pldp_sampling,
    privacy_aware,
    reading,
    spend_as_you_go,
    unbiased,
)
from discretion.methods.details import Details
from discretion.plan import Plan


@dataclass(frozen=True)
class Method:
    name: str
    title: str
    plan: Callable[..., Plan]
    unit: str
    protects: str  # against whom
    reads: str  # what decides who takes part, and how
    paper: str
    idea: str
    explain: Callable[..., Details] | None = None  # takes some of what `plan` takes

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """What the method takes besides the population."""
        return dict(list(inspect.signature(self.plan).parameters.items())[1:])

    @property
    def meanings(self) -> dict[str, str]:
        """What each parameter means, from `name: meaning; name, name: meaning` in the plan's docstring."""
        found: dict[str, str] = {}
        for part in self._said[0].split("; "):
            names, _, meaning = part.partition(": ")
            if all(name in self.parameters for name in names.split(", ")):
                found |= dict.fromkeys(names.split(", "), meaning)
            else:  # a semicolon within a meaning
                found[list(found)[-1]] += f"; {part}"
        return found

    @property
    def note(self) -> str:
        """What the plan's docstring says after the parameters."""
        return self._said[1]

    @property
    def _said(self) -> tuple[str, str]:
        text = " ".join((inspect.getdoc(self.plan) or "").split())
        parameters, _, note = text.partition(". ")
        return parameters.removesuffix("."), note


_NONE = ("none", "nobody: epsilon is infinite")
_MODELS = ("client", "whoever sees the released models; the server is trusted")
_SHARED = ("client", "the other clients, one of whom may know its share of the noise; the server is trusted")
_SUMS = ("client", "the server, which sees sums only, and one other client with it")
_RECORD = ("record", "the server, which sees each client's noisy work")
_READING = ("record", "nobody as published: epsilon is infinite; with read_share > 0, the server")
_BUDGETS, _SIZES, _TRAITS = (
    "budgets",
    "budgets and sizes",
    "budgets, sizes, and traits rho and privacy_weight",
)

_OURS = "Discretion's own: docs/method.md"
_KIANI = "Kiani et al., ICLR 2025"
_IDP = "Boenisch et al., NeurIPS 2023; Kiani et al., ICLR 2025"
_XU_ZHANG = "Xu, Zhang and Huang 2025"
_YUAN = "Yuan and Wang 2025"
_XU_HU = "Xu, Hu and Kotevska 2025"

# fmt: off
METHODS = {row[0]: Method(*row) for row in (
    ("fedavg", "FedAvg", fedavg.plan, *_NONE, "nothing", "McMahan et al., AISTATS 2017",
     "Plain averaging without clip or noise: the ceiling that private methods aim at."),
    ("concert", "Concert", concert.plan, *_SUMS, _BUDGETS, _OURS,
     "All in one sum under one noise; each client as often, then as loudly, as its own budget allows."),
    ("concert_records", "Concert (records)", concert.plan_records, *_RECORD, _SIZES, _OURS,
     "Who needs much noise is heard less, by its exact cost; turns are dealt out, not drawn.",
     concert.explain_records),
    ("dp_fedavg", "DP-FedAvg", dp_fedavg.plan, *_MODELS, "the strictest budget", "McMahan et al., ICLR 2018",
     "One clip and one noise, strong enough for the strictest client."),
    ("adaptive_clipping", "Adaptive clipping", adaptive_clipping.plan, *_MODELS, "the strictest budget",
     "Andrew et al., NeurIPS 2021", "DP-FedAvg with a clip that follows a quantile of the updates' norms."),
    ("idp_fedavg", "IDP-FedAvg (clip)", idp_fedavg.plan_by_clip, *_MODELS, _BUDGETS, _IDP,
     "One noise; each client is clipped at the norm that its own budget allows."),
    ("idp_fedavg_sampling", "IDP-FedAvg (sampling)", idp_fedavg.plan_by_rate, *_MODELS, _BUDGETS, _IDP,
     "One noise and one clip; each client comes as often as its own budget allows."),
    ("spend_as_you_go", "Spend as you go", spend_as_you_go.plan, *_SHARED, _BUDGETS, _KIANI,
     "Clients save budget in early rounds and spend it in later ones, the strictest most of all."),
    ("gdpfed", "GDPFed", gdpfed.plan, *_SUMS, _BUDGETS, _XU_HU,
     "Clients of like budgets form groups, each summed under a noise of its own."),
    ("gdpfed_opc", "GDPFed-opc", gdpfed.plan_opc, *_SUMS, _BUDGETS, _XU_HU,
     "GDPFed, with generous groups asked more often."),
    ("gdpfed_plus", "GDPFed+", gdpfed.plan_plus, *_SUMS, _BUDGETS, _XU_HU,
     "GDPFed-opc, keeping only some coordinates of each group's sum."),
    ("pfa", "PFA", pfa.plan, *_SUMS, _BUDGETS, "Liu et al., VLDB 2021",
     "Strict groups' sums are projected on the directions of the most generous group."),
    ("privacy_aware", "Privacy-aware selection", privacy_aware.plan, *_RECORD, _SIZES, _XU_ZHANG,
     "Clients are drawn so that the bias of the draw and the noise that it brings balance.",
     privacy_aware.explain),
    ("unbiased", "Unbiased selection", unbiased.plan, *_RECORD, _SIZES, _XU_ZHANG,
     "Clients are drawn by their share of the data.", unbiased.explain),
    ("unbiased_compensated", "Compensated selection", unbiased.plan_compensated, *_RECORD, _SIZES, _XU_ZHANG,
     "Clients are drawn by privacy, and weighted so that each counts for its share of the data.",
     unbiased.explain_compensated),
    ("power_of_choice", "Power of choice", reading.power_of_choice, *_READING,
     "losses, raw unless read_share > 0", "Cho et al., AISTATS 2022",
     "Of some clients at random, those with the largest loss train."),
    ("fedpcs", "FedPCS", fedpcs.plan, *_RECORD, _TRAITS, _YUAN,
     "A game of rewards sets each client's privacy level, and clients are drawn by their levels.",
     levels.explain),
    ("fedpcs_adaptive", "FedPCS (adaptive)", fedpcs_adaptive.plan, *_RECORD, _TRAITS, _YUAN,
     "FedPCS, with as many clients in a round as a budget for that round allows.", levels.explain),
    ("random", "Random", fedpcs.plan_random, *_RECORD, _TRAITS, _YUAN,
     "Every client is as likely as any other to be drawn."),
    ("aocs", "AOCS", reading.aocs, *_READING, "norms of gradients, raw unless read_share > 0",
     "Chen et al., TMLR 2022", "Clients take part with a chance that grows with their update's norm."),
    ("fed_cbs", "Fed-CBS", reading.fed_cbs, *_READING, "labels, raw unless read_share > 0",
     "Zhang et al., ICML 2023", "Clients are picked so that their classes balance."),
    ("delta", "DELTA", reading.delta, *_READING, "norms and variances, raw unless read_share > 0",
     "Wang et al., NeurIPS 2023", "Clients with diverse gradients are drawn more, and weighted for it."),
    ("pldp_sampling", "PLDP with adaptive sampling", pldp_sampling.plan, *_RECORD, _SIZES,
     "online appendix, no authors named", "How often a client is drawn follows from the noise it needs.",
     pldp_sampling.explain),
)}
# fmt: on
