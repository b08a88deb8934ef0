"""Stages of a model, one after the other, compute what the whole model does: loss and every gradient, by family."""

from typing import Any

import pytest
import torch

from shardwise.models.anatomy import find_anatomy
from shardwise.models.stage import StagePlace, keep_stage, planned_ends
from shardwise.spec.support.splits import PLANNED_STAGES
from shardwise.train.cross_entropy import Targets
from shardwise.train.loss import LossModule
from shardwise.train.precision import TYPES
from tests.dist.test_slices import toy
from tests.dist.worlds import installed, run_world

#: Blocks of the three stages of four: one in the middle that has neither end.
SPANS = (range(1), range(1, 3), range(3, 4))
#: What a backbone does to embeddings, where it would do nothing by default.
SCALED: dict[str, dict[str, Any]] = {"granite": {"embedding_multiplier": 3.0}}
#: Mixtures whose configurations want more than this toy says; `test_mixtures.py` trains them in stages.
ELSEWHERE = ("deepseek_v2", "deepseek_v3", "glm4_moe", "gpt_oss")
WHOLE = StagePlace(index=0, count=1, blocks=range(4))


def root_of(family: str, place: StagePlace, changes: dict[str, Any]) -> LossModule:
    """The same random model, cut to a stage."""
    anatomy = find_anatomy(toy(family, **SCALED.get(family, {}), **changes))
    if place.count > 1:
        keep_stage(anatomy, place, planned_ends(anatomy))
    types, first = TYPES["fp32"], place.blocks.start
    return LossModule(anatomy, types=types, chunk=16, first_block=first, makes_loss=place.is_last)


def loss_of(stages: list[LossModule]) -> torch.Tensor:
    """Two documents in a sequence, every token trained."""
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 97, (2, 24), generator=draw)
    targets = Targets.of(torch.randint(3, 97, (2, 24), generator=draw), device=torch.device("cpu"))
    positions = torch.cat([torch.arange(14), torch.arange(10)]).repeat(2, 1)
    hidden: torch.Tensor | None = None
    for stage in stages:
        hidden = stage(
            input_ids=ids if hidden is None else None, hidden=hidden, position_ids=positions, targets=targets
        )
    assert hidden is not None
    return hidden


def summed_gradients(modules: list[LossModule]) -> dict[str, torch.Tensor]:
    """By name; the two copies of a tied weight are added."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in (named for module in modules for named in module.named_parameters()):
        if parameter.grad is not None:
            found[name] = found.get(name, torch.zeros(())) + parameter.grad
    return found


def compare_families(families: tuple[str, ...], changes: dict[str, Any]) -> dict[str, tuple[float, float, str]]:
    """Relative difference of the losses, and of the worst gradient, with its name."""
    found: dict[str, tuple[float, float, str]] = {}
    for family in families:
        places = [StagePlace(index=index, count=len(SPANS), blocks=span) for index, span in enumerate(SPANS)]
        whole, stages = [root_of(family, WHOLE, changes)], [root_of(family, place, changes) for place in places]
        losses = loss_of(whole), loss_of(stages)
        for loss in losses:
            loss.backward()
        expected, given = summed_gradients(whole), summed_gradients(stages)
        assert given.keys() == expected.keys(), family
        total = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
        errors = [((given[n] - g).norm() / (g.norm() + 0.01 * total)).item() for n, g in expected.items()]
        worst = max(range(len(errors)), key=errors.__getitem__)
        found[family] = abs(1 - (losses[1] / losses[0]).item()), errors[worst], list(expected)[worst]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_a_family_computes_the_same_in_stages(tied) -> None:
    found = run_world(
        1,
        compare_families,
        installed([family for family in PLANNED_STAGES if family not in ELSEWHERE]),
        {"tie_word_embeddings": tied},
    )[0]
    for family, (loss, gradient, name) in found.items():
        assert loss <= 1e-6, family
        assert gradient <= 1e-5, f"{family}: {name}"


def drop_behind_the_first() -> bool:
    """Whether a stage in the middle gives in training what it gives in evaluation."""
    place = StagePlace(index=1, count=len(SPANS), blocks=SPANS[1])
    root = root_of("starcoder2", place, {"embedding_dropout": 0.5})
    hidden, positions = torch.randn(2, 8, 32), torch.arange(8).repeat(2, 1)
    ways = [root.train(training)(hidden=hidden, position_ids=positions) for training in (True, False)]
    return torch.equal(*ways)


def test_only_the_first_stage_drops_embeddings_out() -> None:
    assert run_world(1, drop_behind_the_first) == [True]
