"""Which parts of a cluster a goal looks at: numbers of GPUs and of nodes."""

import pytest

from shardwise.catalog.gpus import parse_hardware
from shardwise.catalog.models import find_model
from shardwise.plan.answer import answer
from shardwise.plan.search.gpu_counts import formed_parts, parts, smallest_that_fits
from shardwise.plan.search.question import ask
from shardwise.spec.job.file import parse_job
from tests.marks import first
from tests.unit.plan.asking import job, plan


@pytest.mark.parametrize(
    ("goal", "hardware", "counts"),
    [
        ("fewest-gpus", "4x L4", range(1, 5)),
        ("cheapest", "4x L4", range(1, 5)),
        ("fewest-gpus", "130 x 2x L4", [1, *range(2, 261, 2)]),
        ("cheapest", "130 x 2x L4", [1, *range(2, 17, 2), 32, 64, 128, 256, 260]),
    ],
)
def test_which_numbers_of_gpus_are_looked_at(goal, hardware, counts):
    cluster = parse_hardware(hardware)
    assert [part.num_gpus for part in parts(job(goal=goal), cluster)] == list(counts)


QUESTIONS = [
    ("llama-3.1-8b", "12 x 2x L4", "method: full\ntrain: {global_batch_size: 64, offload: none}\n"),
    ("llama-3.1-70b", "12 x 8x A100-80GB-SXM", "method: full\ntrain: {global_batch_size: 96, offload: none}\n"),
    ("gemma-2-27b", "20 x 3x L4", "method: lora\ntrain: {global_batch_size: 60, offload: none}\n"),
    ("mixtral-8x7b", "30 x 1x A100-40GB-SXM", "method: lora\ntrain: {global_batch_size: 30, offload: none}\n"),
    ("llama-3.1-8b", "14 x 1x L4", "method: full\nlayout: fsdp\ntrain: {global_batch_size: 28, offload: none}\n"),
    ("llama-3.1-70b", "11 x 2x RTX-4090", "method: full\ntrain: {global_batch_size: 8, offload: none}\n"),
]


@pytest.mark.parametrize(("model", "hardware", "text"), first(5, QUESTIONS, ci=1))
def test_no_smaller_part_holds_anything(model: str, hardware: str, text: str) -> None:
    cluster, shape = parse_hardware(hardware), find_model(model, offline=True)
    question = ask(parse_job(f"model: m\ngoal: fewest-gpus\n{text}"), model=shape, cluster=cluster)
    found = smallest_that_fits(question)
    for part in formed_parts(question.job, cluster):
        if found is not None and part.num_gpus >= found.num_gpus:
            break
        assert plan(model, part.name, text).best is None
    if found is not None:
        best = answer(question).best
        assert best.execution.layout.world_size == found.num_gpus
