"""rsLoRA, DoRA, named targets, copies of modules: as PEFT's, and so under every layout."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from shardwise.methods.lora import peft_config
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.train.build import Build
from shardwise.train.saving.export import gathered
from tests.dist.cells import OPTIMIZERS, ZERO1, ZERO2, move, prepare_cell, run_built, spread, train_cell
from tests.dist.compare import must_be_the_same
from tests.dist.saved.test_final import adapted, finish, loss_of

#: PEFT warns of merging such an adapter, which is not done here.
pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")

PROBE = torch.arange(3, 18).unsqueeze(0)

CELLS: dict[str, Execution] = {
    "ddp(2)": spread(Layout(dp_replicate=2)),
    "zero1(3)": spread(Layout(dp_shard=3, **ZERO1), micros=2),
    "zero2(2)": spread(Layout(dp_shard=2, **ZERO2)),
    "fsdp(4)": spread(Layout(dp_shard=4)),
    "hsdp(2 x 2)": spread(Layout(dp_replicate=2, dp_shard=2)),
    "tp(2)": spread(Layout(tp=2)),
    "tp(2), recompute": spread(Layout(tp=2), micros=2, gradient_checkpointing="full"),
    "tp(2), selective": spread(Layout(tp=2), gradient_checkpointing="selective"),
    "mp(2)": spread(Layout(pp=2, schedule="sequential")),
    "zero_bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "fsdp(2) x 1f1b(2)": spread(Layout(dp_shard=2, pp=2), micros=2),
    "zero1(2) x tp(2), optimizer offload": spread(Layout(dp_shard=2, tp=2, **ZERO1), offload="optimizer"),
    "fsdp(2) x tp(2), offload": spread(Layout(dp_shard=2, tp=2), offload="all"),
    "1f1b(2) x tp(2)": spread(Layout(pp=2, tp=2), micros=4),
    "fsdp(2) x tp(2)": spread(Layout(dp_shard=2, tp=2), micros=2),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "rslora": {"use_rslora": True},
    "named": {"target_modules": ["q_proj", "down_proj"]},
    "dora": {"use_dora": True},
    "dora on the head": {"use_dora": True, "target_modules": ["lm_head", "v_proj"]},
    "head": {"modules_to_save": ["lm_head"]},
    "embedding": {"modules_to_save": ["embed_tokens"]},
    "norms": {"modules_to_save": ["norm"]},
    "all ends": {"modules_to_save": ["embed_tokens", "lm_head", "norm"], "use_dora": True},
    "matrices": {"modules_to_save": ["q_proj", "down_proj"], "target_modules": ["v_proj", "o_proj", "up_proj"]},
    "whole modules": {"modules_to_save": ["mlp"], "target_modules": ["q_proj", "o_proj"]},
}


LORA = {"r": 4, "lora_alpha": 8}


def _start(built: Build) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Values at the start, but for B, which is not zero, so that logits show how it is scaled."""
    with torch.no_grad():
        for name, parameter in built.model.trained:
            if ".lora_B." in name:
                parameter.fill_(0.01)
    whole = {name: gathered(parameter).clone() for name, parameter in built.model.trained}
    model: Any = built.model.result.model
    return whole, model.eval()(PROBE).logits.detach()


def _peft(job: Job, chosen: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """PEFT's own start of a job's adapters, but for A and B, which are those of `chosen`."""
    torch.manual_seed(0)
    base: Any = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    model: Any = get_peft_model(base, peft_config(job.adapters)).eval()
    named = {name: p for name, p in base.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for name, parameter in named.items():
            if ".lora_A." in name or ".lora_B." in name:
                parameter.copy_(chosen[name])
        return {name: p.detach().clone() for name, p in named.items()}, model(PROBE).logits


@pytest.mark.parametrize("model", ["untied", "tied"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_starts_as_peft_starts_it(variant, model, make_job, tmp_path) -> None:
    job = make_job(model, method="lora", lora=LORA | VARIANTS[variant])
    started, logits = run_built(_start, prepare_cell(job, tmp_path), spread())[0]
    expected, peft_logits = _peft(job, started)
    assert started.keys() == expected.keys()
    for name, weight in expected.items():
        assert torch.allclose(started[name], weight, rtol=1e-6, atol=0), name
    assert torch.allclose(logits, peft_logits, rtol=1e-5, atol=1e-6)


#: What each way of spreading does with each variant; a tied model's ends are the harder ones.
PAIRS = [
    *(("all ends", "tied", cell) for cell in CELLS),
    *(("dora", "untied", cell) for cell in ("ddp(2)", "zero1(3)", "fsdp(4)", "tp(2)", "fsdp(2) x tp(2)")),
    *((variant, "phi3", cell) for variant in ("dora", "all ends") for cell in ("tp(2)", "fsdp(2) x tp(2)")),
    *(("head", "tied", cell) for cell in ("fsdp(4)", "tp(2)", "1f1b(2) x tp(2)", "mp(2)")),
    *(("embedding", "tied", cell) for cell in ("hsdp(2 x 2)", "tp(2)", "1f1b(2) x tp(2)", "mp(2)")),
    *(("norms", "untied", cell) for cell in ("zero2(2)", "tp(2)")),
    *(("rslora", "untied", cell) for cell in ("fsdp(4)", "tp(2)")),
    *(("named", "tied", cell) for cell in ("zero1(3)", "tp(2)")),
    *(("dora on the head", "untied", cell) for cell in ("zero2(2)", "tp(2)")),
    *(("matrices", "untied", cell) for cell in ("fsdp(4)", "fsdp(2) x tp(2)")),
    *(("whole modules", "tied", cell) for cell in ("zero2(2)", "tp(2)")),
]


@pytest.mark.parametrize(("variant", "model", "cell"), PAIRS)
def test_a_variant_trains_as_on_one_process(variant, model, cell, must_train_alike) -> None:
    must_train_alike(CELLS[cell], model, method="lora", lora=LORA | VARIANTS[variant])


@pytest.mark.parametrize(
    ("variant", "model", "cell"),
    [
        ("all ends", "tied", "fsdp(4)"),
        ("all ends", "tied", "1f1b(2) x tp(2)"),
        ("all ends", "untied", "fsdp(2) x tp(2)"),
        ("head", "tied", "mp(2)"),
        ("embedding", "tied", "tp(2)"),
        ("rslora", "untied", "zero1(2) x tp(2), optimizer offload"),
        ("matrices", "untied", "fsdp(2) x 1f1b(2)"),
        ("whole modules", "tied", "tp(2)"),
    ],
)
def test_a_saved_variant_has_pefts_names_and_shapes_and_loads(variant, model, cell, make_job, models, tmp_path) -> None:
    job = make_job(model, method="lora", lora=LORA | VARIANTS[variant], train={**OPTIMIZERS["sgd"], "max_steps": 3})
    final, _, loss = finish(job, tmp_path, replace(CELLS[cell], optimizer="sgd"))
    fresh: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(models[model]), peft_config(job.adapters))
    theirs = get_peft_model_state_dict(fresh, save_embedding_layers=False)
    ours = load_file(final / "adapter_model.safetensors")
    assert {name: weight.shape for name, weight in ours.items()} == {n: w.shape for n, w in theirs.items()}
    assert loss_of(adapted(models[model], final), final) == pytest.approx(loss, rel=1e-5)


#: Trained weights lie on the last stage, or on both ends, and not in the middle one of three.
TARGETS: dict[str, dict[str, Any]] = {
    "head": LORA | {"target_modules": ["lm_head"]},
    "both ends": LORA | {"target_modules": ["lm_head"], "modules_to_save": ["embed_tokens"]},
}

IDLE: dict[str, Execution] = {
    "mp(2)": spread(Layout(pp=2, schedule="sequential")),
    "1f1b(3)": spread(Layout(pp=3), micros=4),
    "zero_bubble(2)": spread(Layout(pp=2, schedule="zero_bubble"), micros=4),
    "ddp(2) x gpipe(2)": spread(Layout(dp_replicate=2, pp=2, schedule="gpipe"), micros=2),
    "fsdp(2) x 1f1b(2)": spread(Layout(dp_shard=2, pp=2), micros=2),
    "fsdp(2) x 1f1b(2), offload, recompute": spread(
        Layout(dp_shard=2, pp=2), micros=2, offload="all", gradient_checkpointing="full"
    ),
    "fsdp(2) x interleaved(2)": spread(Layout(dp_shard=2, pp=2, schedule="interleaved"), micros=4),
    "zero1(2) x 1f1b(2)": spread(Layout(dp_shard=2, pp=2, **ZERO1), micros=2, offload="optimizer"),
    "zero2(2) x zero_bubble(2)": spread(Layout(dp_shard=2, pp=2, schedule="zero_bubble", **ZERO2), micros=4),
    "1f1b(2) x tp(2)": spread(Layout(pp=2, tp=2), micros=4),
}


@pytest.mark.parametrize(("targets", "cell", "idle"), [*(("head", c, 0) for c in IDLE), ("both ends", "1f1b(3)", 1)])
def test_a_pipeline_with_an_idle_stage_trains_as_one_process_does(targets, cell, idle, must_train_alike) -> None:
    """`idle`: the first rank that has nothing to train."""
    _, ranks = must_train_alike(IDLE[cell], "deep untied", method="lora", lora=TARGETS[targets])
    assert [not rank.weights for rank in ranks].index(True) == idle


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "adamw_foreach"])
def test_an_idle_stage_stops_and_goes_on_and_what_is_saved_is_the_adapter(optimizer, make_job, tmp_path) -> None:
    train = {"learning_rate": 0.05, "max_steps": 4, "optimizer": optimizer}
    job = make_job("deep untied", method="lora", lora=TARGETS["head"], train=train)
    chosen = replace(IDLE["fsdp(2) x 1f1b(2)"], optimizer=optimizer)
    must_be_the_same(train_cell(job, tmp_path / "whole", chosen), move(job, tmp_path / "stopped", chosen, chosen, at=2))
    final, _, _ = finish(job, tmp_path / "final", chosen)
    saved = {name.rpartition("base_model.model.")[2] for name in load_file(final / "adapter_model.safetensors")}
    assert saved == {"lm_head.lora_A.weight", "lm_head.lora_B.weight"}
