"""What tables show of a plan: noise is told over the clip, whatever is charged for it."""

from dataclasses import replace

import numpy as np
import pytest

from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.summary import noise_over_clip, treatment


def plan(**options: str) -> Plan:
    phase = Phase.one_pool(3, np.full(2, 0.5), np.array([0.5, 0.0]), noise=2.0)
    return Plan("made", ("a", "b"), (phase,), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(("adjacency", "charged"), [("add_remove", 4.0), ("replace", 2.0)])
def test_noise_over_clip_is_what_its_name_says(adjacency: str, charged: float) -> None:
    made = plan(adjacency=adjacency)
    assert made.release(made.phases[0])[1][0] == charged
    assert noise_over_clip(made, made.phases[0]).tolist() == [4.0, np.inf]
    assert treatment(made).multiplier[:, 0].tolist() == [4.0, 4.0]


def test_noise_over_clip_of_a_fixed_number() -> None:
    phase = Phase.one_pool(3, np.full(2, 0.5), np.full(2, 0.5), noise=2.0)
    made = replace(plan(accounting="paper"), phases=(phase,), sampling="fixed_size")
    assert noise_over_clip(made, phase).tolist() == [4.0, 4.0]


def test_without_clipping_there_is_no_noise() -> None:
    phase = Phase.one_pool(3, np.full(2, 0.5), np.full(2, np.inf), noise=0.0)
    assert noise_over_clip(replace(plan(), phases=(phase,)), phase).tolist() == [0.0, 0.0]
