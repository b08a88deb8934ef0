"""`shardwise rehearse`: exit codes, sentences, and what it prints of a rehearsal."""

import json
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shardwise.api import Rehearsal, Rehearsing, plan
from shardwise.api.plans.rehearsing import with_rehearsals
from shardwise.catalog.models import read_model
from shardwise.errors import UnsupportedError
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.plan.forecast import Candidate, Plan
from shardwise.spec.support.trained import rehearsal_refusals
from tests.marks import first
from tests.unit.configs import config

POSITIONS = {"max_position_embeddings": 128, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
CONFIG = config("llama", 64, 128, 4, 4, 2, vocab=512, **POSITIONS)

#: Model, hardware and layout -> seconds of one core within which it is rehearsed.
LARGE: dict[str, tuple[str, str, str, int]] = {
    "8B on 8 ranks": ("llama-3.1-8b", "8x H100-SXM", "fsdp", 60),
    "70B on 64 ranks": ("llama-3.1-70b", "8 x 8x H100-SXM", "fsdp", 300),
    "405B on 1024 ranks": ("llama-3.1-405b", "128 x 8x H100-SXM", "{dp_shard: 16, tp: 8, pp: 8}", 600),
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job on a model of which nobody has weights."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    file = tmp_path / "job.yaml"
    file.write_text(
        f"model: {tmp_path / 'config.json'}\n"
        "data: {num_rows: 1000, max_length: 64}\n"
        "train: {global_batch_size: 16}\n"
        "hardware: 4x RTX-4090\n"
        f"output_dir: {tmp_path / 'run'}\n"
    )
    return file


def test_every_distinct_rank_has_its_peak_beside_the_forecast(job: Path, shardwise) -> None:
    said = shardwise("rehearse", job, "--json", "--set", "layout.dp_shard=2", "--set", "layout.pp=2")
    assert said.code == 0
    found = json.loads(said.out)
    assert (found["fits"], found["layout"]["pp"], found["compile"]) == (True, 2, False)
    first, last = sorted(found["ranks"], key=lambda one: min(one["ranks"]))[:: len(found["ranks"]) - 1]
    assert sorted(rank for one in found["ranks"] for rank in one["ranks"]) == [0, 1, 2, 3]
    for one in (first, last):
        for part in ("weights", "optimizer"):
            assert one["held"][part] == one["forecast"]["parts"][part]
        assert sum(one["parts"].values()) == one["peak_bytes"] < one["peak_reserved_bytes"]
        assert 0.9 < one["ratio"] < 1.1
        assert one["tensors"][0]["bytes"] >= one["tensors"][-1]["bytes"] > 0
    assert "forward of layer 0" in first["instants"]
    assert "forward of layer 3" in last["instants"] and "optimizer step" in last["instants"]
    kinds = [min(one["ranks"]) for one in found["ranks"]]
    assert said.err.splitlines() == [
        f"rehearsing fsdp x pp: rank {rank} ({number} of {len(kinds)} kinds)" for number, rank in enumerate(kinds, 1)
    ]


@pytest.mark.parametrize(("layout", "size", "vocabulary"), first(1, [("ddp", 8, 512), ("fsdp", 2, 32)]))
def test_parts_are_those_of_the_forecast(layout, size, vocabulary, job, shardwise) -> None:
    """Whole gradients that FSDP has yet to reduce, and that of the head's weight, are gradients."""
    (job.parent / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": vocabulary}))
    options = [f"layout={layout}", f"train.micro_batch_size={size}", "hardware=cpu:2", "data.max_length=16"]
    found = shardwise.json("rehearse", job, *(word for one in options for word in ("--set", one)))
    assert found["reduce_once"] is (layout == "fsdp")
    (rank,) = found["ranks"]
    forecast = rank["forecast"]["parts"]
    for part, rehearsed in rank["parts"].items():
        assert rehearsed == pytest.approx(forecast[part], abs=0.02 * rank["peak_bytes"]), part


def test_what_does_not_fit_is_rehearsed_too_and_exits_1(job: Path, shardwise) -> None:
    (job.parent / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 30_000_000, "num_hidden_layers": 1}))
    options = ("--set", "hardware=1x RTX-4090", "--set", "data.max_length=8", "--set", "train.offload=none")
    said = shardwise("rehearse", job, *options)
    assert said.code == 1 and "single does not fit on 1x RTX-4090: rehearsed peak" in said.out
    assert "30000000 x 64" in said.out


@pytest.mark.parametrize(
    ("asked", "words"), [("layout.tp=4", "key-value heads"), ("train.offload=all", "offload all is not rehearsed")]
)
def test_what_a_layout_cannot_cut_or_a_rehearsal_not_do_is_bad_input(asked, words, job, shardwise) -> None:
    assert words in shardwise.refused("rehearse", job, "--set", asked)


@pytest.mark.parametrize(
    ("family", "options", "sentence"),
    [
        ("llama", {"offload": "optimizer"}, "offload optimizer is not rehearsed: a rehearsal does not tell the host's"),
        ("llama", {"attn_implementation": "flash_attention_2"}, "flash_attention_2 is not rehearsed: it has kernels"),
        ("mixtral", {}, "mixtral is not rehearsed: which expert a token goes to is a number, and rehearsed tensors ha"),
    ],
)
def test_what_cannot_be_rehearsed_is_named(family: str, options: Any, sentence: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "model_type": family, "num_local_experts": 4, "num_experts_per_tok": 2}))
    chosen = Execution(**{"layout": Layout(), "micro_batch_size": 1, "gradient_accumulation_steps": 1, **options})
    (reason,) = rehearsal_refusals(chosen, read_model(str(config)))
    assert reason.startswith(sentence)


def test_a_plan_is_corrected_by_what_is_rehearsed(job: Path, shardwise) -> None:
    eager = ("--set", "train.compile=false")
    forecast = shardwise.json("plan", job, *eager)
    said = shardwise("plan", job, "--rehearse", "--json", *eager)
    made = json.loads(said.out)
    before, after = (one["candidates"][one["chosen"]] for one in (forecast, made))
    assert (after["strategy"], after["layout"], after["fits"]) == (before["strategy"], before["layout"], True)
    assert said.err == f"rehearsing {after['strategy']}: rank 0 (all ranks are alike)\n"
    assert after["memory"]["peak_bytes"] == pytest.approx(before["memory"]["peak_bytes"], rel=0.1)
    assert after["memory"]["peak_bytes"] != before["memory"]["peak_bytes"]
    assert after["memory"]["peak_low_bytes"] == after["memory"]["peak_bytes"]
    rehearsed = re.fullmatch(r"rehearsed, it fits: .+ of 23.5 GiB in .+; the forecast is (.+)", after["reasons"][-1])
    assert after["reasons"][0].startswith(f"needs {rehearsed[1]}, of 23.5 GiB"), "the same figures as above"
    assert after["reasons"][:-1] == before["reasons"]
    assert made["candidates"][1:] == forecast["candidates"][1:]
    assert made["rejected"] == forecast["rejected"]


@pytest.mark.slow
def test_what_was_chosen_is_rehearsed_and_compiled_blocks_are_said(job: Path, shardwise) -> None:
    """The same micro-batch and recompute before and after; what eager blocks add is taken off."""
    asked = ("--set", "train.compile=true", "--set", "layout=ddp", "--set", "data.max_length=128")
    commands = (("plan", job), ("plan", job, "--rehearse"), ("rehearse", job))
    before, after, alone = (shardwise.json(*command, *asked) for command in commands)
    chosen, checked = before["candidates"][0], after["candidates"][0]
    same = [key for key, value in chosen.items() if key not in ("memory", "reasons")]
    assert {key: checked[key] for key in same} == {key: chosen[key] for key in same}
    assert checked["compile"] is True
    assert checked["reasons"][-1].endswith("only a run shows what the compiler keeps")
    assert (alone["compile"], alone["micro_batch_size"]) == (False, chosen["micro_batch_size"])
    assert alone["gradient_checkpointing"] == chosen["gradient_checkpointing"]
    assert alone["eager"] in checked["reasons"][-1] and "rehearsed eager, which by forecast adds" in alone["eager"]
    assert alone["eager_bytes"] > 0
    (rank,) = alone["ranks"]
    peak = checked["memory"]["peak_bytes"]
    assert chosen["memory"]["peak_bytes"] == pytest.approx(peak, rel=0.1)
    assert peak < rank["peak_bytes"]


@pytest.mark.slow
def test_what_does_not_fit_when_it_is_rehearsed_gives_way_and_where_nothing_does_it_is_said(job, monkeypatch) -> None:
    rehearsals: dict[Execution, Rehearsal] = {}
    rehearse_candidate = with_rehearsals.__globals__["rehearse_candidate"]

    def once(made: Plan, one: Candidate, **options: Any) -> Rehearsal:
        if one.execution not in rehearsals:
            rehearsals[one.execution] = rehearse_candidate(made, one, **options)
        return rehearsals[one.execution]

    monkeypatch.setitem(with_rehearsals.__globals__, "rehearse_candidate", once)
    made = plan(job, overrides=["train.compile=false", "layout=[fsdp, ddp]"])
    first, second = made.candidates
    small = replace(first, memory=replace(first.memory, capacity_bytes=2**20))
    begun: list[Rehearsing] = []
    found = with_rehearsals(replace(made, candidates=(small, second)), on_update=begun.append)
    assert [one.strategy for one in begun] == [one.execution.layout.strategy for one in (first, second)]
    assert [one.execution for one in found.candidates] == [second.execution, first.execution]
    assert (found.chosen, [one.fits for one in found.candidates]) == (0, [True, False])
    assert found.candidates[0].reasons[-2].startswith("rehearsed, it fits:")
    strategy = first.execution.layout.strategy
    assert found.candidates[0].reasons[-1].startswith(f"{strategy}: rehearsed, it does not fit: ")
    assert [one.strategy for one in found.rejected] == [strategy]
    none = with_rehearsals(replace(made, candidates=(small,)))
    assert none.best is None
    assert none.advice[0].startswith(f"{strategy}: rehearsed, it does not fit: ")


def test_what_is_not_rehearsed_keeps_its_forecast_and_a_failure_is_said(job, shardwise, monkeypatch) -> None:
    chosen = shardwise.json("plan", job, "--rehearse", "--set", "train.offload=optimizer")["candidates"][0]
    assert chosen["fits"]
    assert chosen["reasons"][-1].startswith("not rehearsed: offload optimizer is not rehearsed")

    def fails(*_: Any, **__: Any) -> None:
        raise UnsupportedError("rank 0 fails: no kernel takes it")

    monkeypatch.setitem(with_rehearsals.__globals__, "rehearse_candidate", fails)
    with pytest.raises(UnsupportedError, match=r"every rehearsal fails\n.*: rank 0 fails: no kernel takes it"):
        with_rehearsals(plan(job))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--solve", "max_length"), "--solve and --rehearse exclude each other; keep one, then ask for the other"),
        (("--hardware", "1x L4, 2x L4"), "--rehearse checks a plan for one hardware; name it, such as --hardware '4x"),
        (("--task", "generate"), "--task generate has no --solve, --rehearse, --calibrated, --what-if, --for, "),
    ],
)
def test_a_plan_that_is_not_rehearsed_is_refused(options, sentence, job, shardwise) -> None:
    assert sentence in shardwise.refused("plan", job, "--rehearse", *options)


def _processor_seconds() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.mark.slow
@pytest.mark.timed
@pytest.mark.parametrize("name", LARGE)
def test_large_models_are_rehearsed_soon(name: str, job: Path, shardwise) -> None:
    model, hardware, layout, most_seconds = LARGE[name]
    train = {"global_batch_size": 1024, "micro_batch_size": 1}
    asked = {"model": model, "data": {"num_rows": 10**6, "max_length": 4096}, "train": train, "hardware": hardware}
    job.write_text(json.dumps({**asked, "output_dir": str(job.parent / "run")}))
    began = _processor_seconds()
    said = shardwise("rehearse", job, "--json", "--set", f"layout={layout}")
    seconds = _processor_seconds() - began
    assert (said.code, said.err.count("rehearsing ")) == (0, said.err.count("\n"))
    ranks = [rank for one in json.loads(said.out)["ranks"] for rank in one["ranks"]]
    assert sorted(ranks) == list(range(int(name.split()[-2])))
    assert seconds < most_seconds
