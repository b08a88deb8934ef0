"""Terms of published stacks: each is a whole number of tensors of known size."""

import pytest

from accuracy.cases import Case, case_of
from accuracy.differences import Difference, as_loaded, changed, peak_of_stack
from shardwise.plan.inventory import take_inventory
from shardwise.plan.memory import holdings_of
from shardwise.plan.persistent import Holding
from shardwise.plan.work import Work, work_of
from tests.unit.accuracy.published import LORA, row


def _work(case: Case) -> Work:
    inventory = take_inventory(case.job, case.model)
    return work_of(case.job, model=case.model, cluster=case.cluster, execution=case.execution, inventory=inventory)


def _first(work: Work) -> Holding:
    return holdings_of(work)[0]


def test_foreach_adamw_takes_one_copy_of_this_ranks_share_of_what_is_trained():
    work = _work(case_of(row()))
    alive = changed("optimizer step", {"weights": 1.0}, work, _first(work), Difference(optimizer_copies=1))
    assert alive["temporary"] == pytest.approx(work.inventory.trained_elements * 4 / 2)


def test_a_loss_that_writes_over_its_logits_changes_the_loss_only():
    work = _work(case_of(row()))
    fused = Difference(logit_bytes=8)
    assert changed("end of forward", {"logits": 5.0}, work, _first(work), fused)["logits"] == 2 * 1024 * 128256 * 8
    assert changed("backward of layer 3", {"logits": 5.0}, work, _first(work), fused)["logits"] == 5.0


def test_first_form_fsdp_with_frozen_weights_keeps_the_gradients_of_block_inputs():
    case = case_of(row(**LORA, source_id="fms-acceleration"))
    assert case.difference.keeps_gradients
    work = _work(case)
    alive = changed("backward of layer 15", {}, work, _first(work), Difference(keeps_gradients=True))
    assert alive["activations"] == 14 * 2 * 1024 * 2048 * 2
    assert not case_of(row(source_id="fms-acceleration")).difference.keeps_gradients


def test_no_difference_is_the_planners_own_peak():
    work = _work(case_of(row()))
    name, peak = peak_of_stack(work, Difference())
    more = peak_of_stack(work, Difference(stream_copies=1))[1]
    assert name != "evaluation"
    assert more - peak == pytest.approx(2 * 1024 * 2048 * 2 * 16, rel=0.2)


def test_what_is_not_quantised_stays_in_sixteen_bits_where_nothing_prepares_it():
    qlora = row(**{**LORA, "method": "qlora", "n_gpus": "1", "shard_strategy": "none"})
    work = _work(case_of(qlora))
    narrowed = as_loaded(work)
    saved = _first(work).weights - _first(narrowed).weights
    norms = 16 * 2 * 2048 + 2048
    assert saved == (128256 * 2048 + norms) * 2  # Llama-3.2-1B's embedding is its head too
    assert case_of(qlora).difference.loads_narrow
    assert not case_of(row(**LORA)).difference.loads_narrow
