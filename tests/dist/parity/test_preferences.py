"""Learning from preferences: the same under every layout, and what a plain loop computes."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from shardwise.parallel import compiled
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.run import read_metrics, write_json
from shardwise.train.build import Build
from shardwise.train.rehearsing.command import rehearse_ranks
from tests.dist.cells import LAYOUTS, PAIRS, Trained, prepare_cell, resume, run_built, spread, train_cell, train_rank
from tests.dist.compare import must_equal, relative
from tests.marks import rare_but_first

#: As `cells.spread`, by SGD.
sgd = partial(spread, optimizer="sgd")

STEPS = 4
NAMES = ("rewards/chosen", "rewards/rejected", "rewards/margins", "logps/chosen", "logps/rejected")


def rows_of(objective: str, *, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs, or labelled answers, of very different lengths."""
    draw, words = random.Random(seed), ["red", "green", "blue", "one", "two", "three", "four", "north", "south", "east"]

    def text(most: int) -> str:
        return " ".join(draw.choices(words, k=draw.randint(1, most)))

    pairs = [{"prompt": text(14), "chosen": f" {text(9)}", "rejected": f" {text(9)}"} for _ in range(count)]
    if objective != "kto":
        return pairs
    answers = [(pair["prompt"], "chosen" if number % 3 else "rejected", pair) for number, pair in enumerate(pairs)]
    return [{"prompt": asked, "completion": pair[key], "label": key == "chosen"} for asked, key, pair in answers]


@pytest.fixture(scope="module")
def ask(make_job: Callable[..., Job], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """Makes jobs that learn from preferences, by SGD."""
    folder = tmp_path_factory.mktemp("preferences")

    def make(model: str, *, objective: str = "dpo", preference: Any = None, data: Any = None, **other: Any) -> Job:
        path = folder / ("labelled.jsonl" if objective == "kto" else "pairs.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(objective, count=29, seed=1)))
        given = {"preference": preference} if preference else {}
        train = {"max_steps": STEPS, "warmup_steps": 0, "learning_rate": 2e-3, "optimizer": "sgd"}
        train |= other.pop("train", {})
        rows = {"path": str(path), **(data or {})}
        return make_job(model, objective=objective, data=rows, train=train, **given, **other)

    return make


def must_record_alike(expected: Trained, found: Trained, *, names: tuple[str, ...] = NAMES) -> None:
    """Rewards are differences of log-probabilities: they are as near as those are."""
    for one, other in zip(expected.metrics, found.metrics, strict=True):
        for name in names:
            assert abs(one[name] - other[name]) <= 1e-5 * max(abs(one["logps/chosen"]), 1), name


CELLS: dict[str, Execution] = {
    "accumulation 4": sgd(micros=4),
    **{name: sgd(layout, micros=2) for name, layout in LAYOUTS.items() if name != "single"},
    "ddp(3), uneven": sgd(Layout(dp_replicate=3), micros=2),
    "cp x fsdp": sgd(Layout(cp=2, dp_shard=2), micros=2),
    "pp x tp": sgd(Layout(pp=2, tp=2), micros=2),
    "ddp x pp, recompute": sgd(Layout(dp_replicate=2, pp=2), micros=2, gradient_checkpointing="full", optimizer="sgd"),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("method", "model"), PAIRS)
def test_pairs_train_as_on_one_process(method, model, cell, ask, single, tmp_path) -> None:
    job = ask(f"deep {model}" if CELLS[cell].layout.num_stages > 3 else model, method=method)
    expected, ranks = single(job), train_cell(job, tmp_path, CELLS[cell])
    must_equal(expected, ranks)
    must_record_alike(expected, ranks[0])


#: Jobs beside DPO's own.
OTHERS: dict[str, dict[str, Any]] = {
    "orpo": {"objective": "orpo"},
    "simpo": {"objective": "simpo", "preference": {"beta": 2.0, "label_smoothing": 0.1}},
    "kto": {"objective": "kto", "preference": {"desirable_weight": 1.5}},
    "kto, adapters": {"objective": "kto", "method": "lora"},
    "kto without KL": {"objective": "kto", "preference": {"loss_type": "apo_zero_unpaired"}},
    "several losses": {"preference": {"loss_type": ["sigmoid", "sft", "ipo"], "loss_weights": [0.5, 0.3, 0.01]}},
    "precomputed, adapters": {"method": "lora", "preference": {"reference": "precomputed"}},
    "no reference": {"preference": {"reference": "none"}},
}
SOME = {name: CELLS[name] for name in ("ddp(3), uneven", "fsdp", "tp", "cp")} | {"pp": sgd(Layout(pp=2), micros=4)}


@pytest.mark.parametrize("cell", SOME)
@pytest.mark.parametrize("kind", OTHERS)
def test_every_objective_trains_as_on_one_process(kind, cell, ask, single, tmp_path) -> None:
    job = ask("untied", data={"eval_fraction": 0.2}, **OTHERS[kind])
    expected, ranks = single(job), train_cell(job, tmp_path, SOME[cell])
    must_equal(expected, ranks)
    names = (*NAMES, "kl") if job.objective == "kto" else (*NAMES, "rewards/accuracies")
    must_record_alike(expected, ranks[0], names=names)
    evaluated = (*(f"eval_{name}" for name in names), "eval_loss")
    last, other = expected.metrics[-1], ranks[0].metrics[-1]
    for name in evaluated:
        assert abs(last[name] - other[name]) <= 1e-5 * max(abs(last["eval_logps/chosen"]), 1), name


#: Objectives whose rows are packed, and layouts that pack them.
PACKED = {"dpo": {}, **{name: OTHERS[name] for name in ("orpo", "kto", "several losses", "precomputed, adapters")}}
PACKING = {"accumulation 2": sgd(micros=2), **SOME, "fsdp x pp": sgd(Layout(dp_shard=2, pp=2), micros=2)}


@pytest.mark.parametrize("cell", PACKING)
@pytest.mark.parametrize("kind", PACKED)
def test_packed_rows_train_as_padded_ones_on_one_process(kind, cell, ask, single, tmp_path) -> None:
    """Several documents share a row, in which each is apart."""
    asked = ({"eval_fraction": 0.2, "packing": is_on} for is_on in (False, True))
    padded, packed = (ask("untied", data=data, **PACKED[kind]) for data in asked)
    expected, ranks = single(padded), train_cell(packed, tmp_path, PACKING[cell])
    must_equal(expected, ranks)
    must_record_alike(expected, ranks[0])
    assert abs(expected.metrics[-1]["eval_loss"] - ranks[0].metrics[-1]["eval_loss"]) <= 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # dynamo's own
@pytest.mark.parametrize("cell", rare_but_first(["accumulation 4", "fsdp", "pp"]))
@pytest.mark.parametrize(("objective", "packing"), [("dpo", False), ("kto", True)])
def test_compiled_blocks_switch_adapters_off(objective, packing, cell, ask, single, monkeypatch, tmp_path) -> None:
    """A block is compiled with adapters and without, for gradients and for none."""
    monkeypatch.setattr(compiled, "BACKEND", "aot_eager")
    asked = {"objective": objective, "method": "lora", "train": {"learning_rate": 0.5, "max_steps": 2}}
    job, packed = (ask("untied", data={"packing": is_on}, **asked) for is_on in (False, packing))
    ranks = train_cell(packed, tmp_path, replace(CELLS[cell], compile=True))
    must_equal(single(job), ranks)
    must_record_alike(single(job), ranks[0])
    assert abs(ranks[0].metrics[-1]["rewards/chosen"]) > 1e-4, "the reference is apart from what is trained"


@pytest.mark.slow
@pytest.mark.parametrize("layout", [Layout(cp=2), Layout(cp=2, dp_shard=2), Layout(pp=2)])
@pytest.mark.parametrize("objective", ["dpo", "orpo", "kto"])
def test_a_rehearsal_has_the_forwards_of_the_reference(objective, layout, ask) -> None:
    """On rows of full length, packed or padded: as much memory as each needs."""
    for packing in (False, True):
        one = ask("untied", objective=objective, method="lora", data={"packing": packing})
        found = rehearse_ranks(one, sgd(layout, micros=2), [0], cuda=False)[0]
        assert "refused" not in found, found
        assert found["peak_bytes"] > found["held"]["weights"] > 0


@pytest.mark.parametrize("model", ["granite", "untied"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_logits_in_chunks_give_the_same_gradients(model, method, ask, single, tmp_path, monkeypatch) -> None:
    """A pair's loss is known once its last chunk of 5 positions is done; of scaled logits too."""
    job = ask(model, method=method)
    expected = single(job)
    monkeypatch.setattr(Execution, "head_chunk", lambda *_, **__: 5)
    must_equal(expected, train_cell(job, tmp_path, sgd(micros=2)))


@pytest.mark.parametrize("objective", ["dpo", "orpo", "simpo"])
def test_one_process_computes_what_the_papers_say(objective, ask, tmp_path) -> None:
    job = ask("untied", objective=objective, train={"learning_rate": 0.05, "lr_scheduler_type": "constant"})
    losses, norms = run_built(_as_in_papers, prepare_cell(job, tmp_path), sgd())[0]
    found = train_cell(job, tmp_path / "run", sgd())[0]
    assert relative(losses, found.series("loss")) <= 1e-5
    assert relative(norms, found.series("grad_norm")) <= 1e-5
    assert len(set(losses)) == STEPS


def _as_in_papers(built: Build) -> tuple[list[float], list[float]]:
    """Pair by pair, with nothing of ours but the prepared rows."""
    job = built.job
    policy, reference = (AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32) for _ in range(2))
    optimizer = torch.optim.SGD(policy.parameters(), lr=job.train.learning_rate)
    losses, norms = [], []
    for batch in built.batches.from_(0):
        rows = [built.data.rows(sample) for sample in batch.sample_ids]
        every = sum(len(chosen[0]) - 1 for chosen, _ in rows)
        total = 0.0
        for pair in rows:
            logs, means, texts = [], [], []
            for ids, _, labels in pair:
                where = torch.tensor(labels != -100)
                tokens = torch.tensor(ids).unsqueeze(0)
                both = [_log(policy, tokens), _log(reference, tokens).detach()]
                ours, theirs = (one[where[:-1]].sum() for one in both)
                logs.append(ours - theirs)
                means.append(ours / where.sum())
                texts.append(-both[0].sum())
            if job.objective == "dpo":
                loss = -F.logsigmoid(0.1 * (logs[0] - logs[1])) / len(rows)
            elif job.objective == "simpo":
                loss = -F.logsigmoid(0.1 * (means[0] - means[1]) - 0.5) / len(rows)
            else:
                odds = [torch.log(mean.exp() / (1 - mean.exp())) for mean in means]
                loss = texts[0] / every - 0.1 * F.logsigmoid(odds[0] - odds[1]) / len(rows)
            loss.backward()
            total += loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses, norms


def _log(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """log p of each token but the first."""
    return model(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:].unsqueeze(1)).squeeze(1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["qwen3_moe", "balanced mixtral"])
def test_pairs_train_experts_that_are_dealt_among_ranks(model, ask, single, tmp_path) -> None:
    """The loss of routers is of the policy's routes alone."""
    job = ask(model, method="full")
    must_equal(single(job), train_cell(job, tmp_path, sgd(Layout(dp_shard=2, ep=2), micros=2)))


@pytest.mark.slow
def test_copies_of_embedding_and_head_are_off_in_the_reference(ask, tmp_path) -> None:
    """As where log-probabilities of the reference were computed before the first step."""
    lora = {"r": 4, "lora_alpha": 8, "modules_to_save": ["embed_tokens", "lm_head"]}
    losses = []
    for reference in ("auto", "precomputed"):
        preference = {"reference": reference}
        job = ask("untied", method="lora", train={"learning_rate": 0.05}, lora=lora, preference=preference)
        losses.append(train_cell(job, tmp_path / reference, sgd(Layout(tp=2), micros=2))[0].series("loss"))
    assert relative(*losses) <= 1e-5
    assert abs(losses[0][-1] - losses[0][0]) > 1e-4


def test_a_run_goes_on_under_another_layout_with_the_same_reference(ask, single, tmp_path) -> None:
    job, stopped = (ask("untied", train={"max_steps": steps, "save_steps": 2}) for steps in (STEPS, 2))
    expected, run = single(job), prepare_cell(job, tmp_path)
    write_json(run.resolved, stopped.to_json())
    run_built(train_rank, run, sgd(Layout(dp_shard=2), micros=2))
    write_json(run.resolved, job.to_json())
    resume(run, sgd(Layout(pp=2), micros=2), at=2)
    # The schedule of the first half is that of a shorter run.
    found = read_metrics(run)
    assert [one["step"] for one in found] == [1, 2, 3, 4]
    assert found[2]["rewards/margins"] != 0
    assert len([*Path(json.loads(run.data.read_text())["train"]["folder"]).glob("reference-*.bin")]) == 1
    assert expected.metrics[0]["loss"] == pytest.approx(found[0]["loss"], rel=1e-5)


def test_another_model_is_the_reference(ask, models, tmp_path) -> None:
    """Of which the first loss is not log 2; where it is the same model it is."""
    losses: list[float] = []
    for name in ("untied", "deep untied"):
        job = ask("untied", train={"max_steps": 1}, preference={"reference": str(models[name])})
        losses += train_cell(job, tmp_path / name, sgd(Layout(dp_shard=2)))[0].series("loss")
    assert losses[0] == pytest.approx(0.6931472, abs=1e-6)
    assert abs(losses[1] - losses[0]) > 1e-4


QUANTIZED = {"method": "qlora", "preference": {"reference": "precomputed"}}


@pytest.mark.parametrize("other", [{"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, QUANTIZED])
def test_the_kept_reference_of_weights_that_are_read_otherwise_is_another(other, ask, tmp_path) -> None:
    for name, changes in (("first", {}), ("other", other)):
        job = ask("untied", train={"max_steps": 1}, **changes)
        (loss,) = train_cell(job, tmp_path / name, sgd())[0].series("loss")
        assert loss == pytest.approx(0.6931472, abs=1e-7)
