"""Forecasts by profiles beside what real processes measured, of families that no rule knows."""

import pytest

from shardwise.models.built.shape import built_shape
from shardwise.spec.support.splits import splits
from tests.dist.profiled import PROFILED, WAYS, compared, config_of_family
from tests.dist.worlds import installed
from tests.marks import first

pytestmark = pytest.mark.dist
RUNS = [("qwen3_5_text", "fsdp"), ("openai-gpt", "single")]
RUNS += [(family, layout) for family in PROFILED for layout in WAYS if (family, layout) not in RUNS]


@pytest.mark.slow
@pytest.mark.parametrize(("family", "layout"), first(2, RUNS))
def test_what_is_measured_is_what_profiles_forecast(family, layout, tmp_path) -> None:
    if not installed([family]):
        pytest.skip(f"the installed transformers has no {family}")
    if layout == "1f1b" and not splits(built_shape(config_of_family(family), file="-"), "stages"):
        pytest.skip(f"{family} is not cut in stages")
    found = compared(family, layout, tmp_path)
    print(family, layout, found)
    assert all(exact for exact, _ in found)
    assert max(abs(error) for _, error in found) <= 0.08


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"precision": "mixed"}, {"recompute": "full"}, {"recompute": "selective"}, {"method": "lora"}]
)
def test_so_are_other_executions(changes, tmp_path) -> None:
    (found,) = compared("granite_swa", "single", tmp_path, **changes)
    assert found[0]
    assert abs(found[1]) <= 0.05
