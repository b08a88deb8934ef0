"""Forecasts beside one H100's measurements (`accuracy/h100-cells.csv`, docs/how/measured.md)."""

import csv
from pathlib import Path
from statistics import median

import pytest

from shardwise.plan.costs import loss
from shardwise.plan.time.step import step_of
from shardwise.plan.work import activations
from shardwise.plan.work.activations import BlockSetting
from shardwise.units import GIB
from tests.unit.plan.asking import config, execution, forecast_memory, job, shape, work


def model(family, *sizes, vocab, tied=True, **others):
    return config(family, *sizes, vocab=vocab, max_position_embeddings=16384, tie_word_embeddings=tied, **others)


MODELS = {
    "toy": model("llama", 256, 768, 4, 8, 4, vocab=4096, tied=False),
    "q05": model("qwen2", 896, 4864, 24, 14, 2, vocab=151936),
    "l1": model("llama", 2048, 8192, 16, 32, 8, vocab=128256, head_dim=64),
    "q4": model("qwen3", 2560, 9728, 36, 32, 8, vocab=151936, head_dim=128),
    "l8": model("llama", 4096, 14336, 32, 32, 8, vocab=128256, tied=False),
}
#: Toys are all workspace and host; packed rows had a mask then; one peak was in the loss.
LEFT_OUT = {"toy32", "toymix", "toyres", "q05pack", "q05offo"}
with (Path(__file__).parents[3] / "accuracy/h100-cells.csv").open() as file:
    CELLS = {row["name"]: row for row in csv.DictReader(file) if row["name"] not in LEFT_OUT}


def worked(cell):
    size, times, length = int(cell["micro"]), int(cell["acc"]), int(cell["rows"].partition("-")[2])
    asked = job(method=cell["method"], data={"max_length": length}, train={"global_batch_size": size * times})
    keys = {key: cell[key] for key in ("precision", "loss", "offload")}
    keys |= {"gradient_checkpointing": cell["recompute"], "compile": cell["compile"] == "True"}
    chosen = execution(micro_batch_size=size, gradient_accumulation_steps=times, **keys)
    return work(asked, shape(MODELS[cell["model"]]), chosen)


@pytest.fixture
def as_then(monkeypatch):
    """Logits were kept whole, or computed again by chunks; PEFT cast inputs to float32, autocast
    what norms gave to each matrix; selective recompute saved products, compiled blocks inputs."""
    now = activations._group

    def group(reads, matrices, model, setting):
        times = len(matrices) if reads in ("attention_input", "mlp_input") else 1
        anew = setting.casts and not setting.compiled and setting.inventory.trained("input_layernorm")
        return now(reads, matrices, model, setting) * (times if anew else 1)

    monkeypatch.setattr(activations, "_group", group)

    def logits(scene):
        positions = scene.work.tokens if scene.work.execution.loss == "full" else min(scene.work.tokens, 1024)
        return positions * scene.work.model.vocab_size * (2 + 2 + 4 + 4)

    def head_gradient(scene):
        kept = scene.whole or scene.work.execution.loss == "full"
        return 0 if kept else scene.part.trained_head * scene.work.types.trainable

    monkeypatch.setattr(loss, "in_loss", lambda scene: (logits(scene), head_gradient(scene)))
    monkeypatch.setattr(loss, "made_head_gradient", head_gradient)
    wide = property(lambda s: s.types.trainable if s.casts else s.types.compute)
    monkeypatch.setattr(BlockSetting, "adapter_bytes", wide)
    monkeypatch.setattr(activations, "made_again", lambda _: False)
    monkeypatch.setattr(activations, "_made_again_inside", lambda *_: set())


@pytest.mark.parametrize("name", CELLS)
def test_memory_is_forecast_within_two_percent(name, as_then):
    forecast = forecast_memory(worked(CELLS[name]))
    allocated = (forecast.peak_bytes - forecast.ranks[0].parts["context"]) / GIB
    assert allocated == pytest.approx(float(CELLS[name]["peak_allocated_gib"]), rel=0.02)


def test_half_the_times_are_forecast_within_ten_percent(as_then):
    """The host was three times slower than usual; eager selective recompute waits for it."""
    measured = {name: float(cell["step_measured_s"]) for name, cell in CELLS.items() if cell["step_measured_s"]}
    off = {name: abs(step_of(worked(CELLS[name])).seconds / seconds - 1) for name, seconds in measured.items()}
    assert median(off.values()) < 0.1
    assert max(share for name, share in off.items() if name != "q4auto") < 0.25
