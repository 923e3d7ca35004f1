"""Published epsilons of deployments elsewhere, as reference points, and their place on a scale."""

import math
from dataclasses import dataclass

LEAST, MOST = 0.1, 100.0  # ends of the scale, which is logarithmic
TIERS = (
    "Ponomareva et al. (How to DP-fy ML, arXiv:2303.00654) call an epsilon up to 1 strong, up to 10 "
    "reasonable, and a larger one weak, where delta is small."
)


@dataclass(frozen=True)
class Published:
    """One published guarantee, with what its epsilon is counted for and by whom it was published."""

    who: str
    epsilon: tuple[float, ...]  # one, or the smallest and the largest
    unit: str  # what the epsilon is for
    delta: str
    source: str


PUBLISHED = (
    Published(
        "Windows telemetry, Microsoft",
        (1.672,),
        "a user’s use of apps, in each collection (every six hours); noise on the device",
        "0",
        "Ding, Kulkarni, Yekhanin 2017, Collecting Telemetry Data Privately",
    ),
    Published(
        "Community Mobility Reports, Google",
        (2.64,),
        "a user’s places on one day; each further day costs as much again",
        "0",
        "Aktay et al. 2020, arXiv:2004.04145",
    ),
    Published(
        "Popular emoji, Apple",
        (4.0,),
        "one emoji that a user typed; noise on the device",
        "0",
        "Apple Differential Privacy Team 2017, Learning with Privacy at Scale",
    ),
    Published(
        "Language models of the keyboard Gboard, Google",
        (0.994, 13.69),
        "all that a device contributed to one model, over 30 models",
        "1e-10",
        "Google Research 2024, Advances in private training for production on-device language models",
    ),
    Published(
        "Census 2020 redistricting data, USA",
        (19.61,),
        "a person’s record 17.14, a housing unit’s record 2.47; once",
        "1e-10",
        "Abowd et al. 2022, The 2020 Census Disclosure Avoidance System TopDown Algorithm",
    ),
    Published(
        "Audience Engagements, LinkedIn",
        (34.9,),
        "a member’s data, in the answers of one month",
        "7e-9",
        "Rogers et al. 2020, arXiv:2002.05839",
    ),
)


def place(epsilon: float) -> float:
    """Return where an epsilon stands on the scale, from 0 to 1; beyond an end, that end."""
    inside = min(max(epsilon, LEAST), MOST)
    return math.log(inside / LEAST) / math.log(MOST / LEAST)
