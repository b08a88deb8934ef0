"""`final/`: what is saved is what was trained, in the form others load, and nothing else gets that name."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from shardwise.spec.execution import Execution
from shardwise.spec.job import Job
from shardwise.spec.layout import Layout
from shardwise.spec.run import RunDirectory
from shardwise.train import export, save
from shardwise.train.check import main as check
from shardwise.train.durable import SaveError
from shardwise.train.journal import Journal
from shardwise.train.loop import train
from shardwise.train.save import live_logits, save_final
from shardwise.train.signals import StopFlag
from tests.dist.cells import OPTIMIZERS, Trained, composed, execution, must_equal, outcome, prepare_cell
from tests.dist.worlds import run_world

#: An odd number of tokens, which ranks that share a sequence cannot share out as it is.
PROBE = torch.arange(3, 18).unsqueeze(0)


def check_here(arguments: list[str]) -> tuple[int, str]:
    """The check without the seconds that an interpreter of its own takes to import everything."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        return check(arguments), said.getvalue().strip()


def _train_and_save(
    run: RunDirectory, chosen: Execution, shard_bytes: int, clean: bool
) -> tuple[Trained, torch.Tensor]:
    export.SHARD_BYTES = shard_bytes
    if not clean:
        save.in_clean_process = check_here
    built = composed(run, chosen)
    journal = Journal(run=run, rank=built.world.rank)
    train(built, start=0, journal=journal, stop=StopFlag())
    model = built.model
    save_final(model, run=run, journal=journal, probe=PROBE)
    return outcome(run, built), live_logits(model, PROBE)


def _finish(
    job: Job, root: Path, chosen: Execution, *, shard_bytes: int = 10**9, clean: bool = False
) -> tuple[Path, Trained, torch.Tensor]:
    """Trains and saves; `clean` lets the check have its own process, as it has outside of tests."""
    run = prepare_cell(job, root)
    trained, logits = run_world(chosen.layout.world_size, _train_and_save, run, chosen, shard_bytes, clean)[0]
    return run.final, trained, logits


FSDP = execution(Layout(dp_shard=2), micro_batch_size=4)


STAGES = execution(Layout(pp=2, dp_shard=2), micro_batch_size=2, gradient_accumulation_steps=2)
SLICES = execution(Layout(dp_shard=2, tp=2), micro_batch_size=4)
CHUNKS = execution(Layout(pp=2, schedule="interleaved"), micro_batch_size=2, gradient_accumulation_steps=4)


@pytest.mark.parametrize(
    "chosen", [FSDP, STAGES, CHUNKS, SLICES], ids=["fsdp", "fsdp x pp", "interleaved", "fsdp x tp"]
)
@pytest.mark.parametrize("model", ["deep untied", "deep tied"])
def test_a_full_model_loads_with_from_pretrained(
    model: str, chosen: Execution, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job = make_job(model, train={"max_steps": 3})
    final, trained, logits = _finish(job, tmp_path, chosen, shard_bytes=40_000, clean=chosen is FSDP)
    assert (final / "model.safetensors.index.json").is_file(), "the small limit should give several weight files"
    loaded: Any = AutoModelForCausalLM.from_pretrained(final).eval()
    for name, weight in trained.weights.items():
        assert torch.equal(loaded.get_parameter(name), weight), name
    assert torch.allclose(loaded(PROBE).logits, logits, atol=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(final)
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.chat_template, "the default template the rows were rendered with belongs to the model now"


@pytest.mark.slow
def test_weights_that_files_call_otherwise_are_trained_and_saved_as_transformers_saves_them(
    make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    job = make_job("gpt_neox", train=OPTIMIZERS["sgd"])
    _, expected, _ = _finish(job, tmp_path / "single", execution(optimizer="sgd"))
    final, trained, logits = _finish(job, tmp_path / "fsdp", replace(FSDP, optimizer="sgd"))
    must_equal(expected, [trained])
    loaded: Any = AutoModelForCausalLM.from_pretrained(models["gpt_neox"])
    loaded.save_pretrained(tmp_path / "theirs")
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (tmp_path / "theirs", final))
    assert "embed_out.weight" in ours, "GPT-NeoX's head is lm_head in the model"
    assert ours.keys() == theirs.keys()
    again, info = AutoModelForCausalLM.from_pretrained(final, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert all(torch.equal(again.get_parameter(name), weight) for name, weight in trained.weights.items())
    assert torch.allclose(again.eval()(PROBE).logits, logits, atol=1e-5)


@pytest.mark.slow
def test_an_adapter_and_a_whole_copy_of_a_head_that_files_call_otherwise(
    make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    lora = {"r": 4, "lora_alpha": 8, "modules_to_save": ["lm_head"]}
    job = make_job("gpt_neox", method="lora", lora=lora, train={"max_steps": 3})
    final, _, logits = _finish(job, tmp_path, FSDP)
    base: Any = AutoModelForCausalLM.from_pretrained(models["gpt_neox"])
    adapted: Any = PeftModel.from_pretrained(base, str(final)).eval()
    assert torch.allclose(adapted(PROBE).logits, logits, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "asked", "saved"),
    [
        ("full", "auto", torch.bfloat16),
        ("full", "float32", torch.float32),
        ("lora", "auto", torch.float32),
        ("lora", "bfloat16", torch.bfloat16),
    ],
)
def test_weights_are_saved_in_the_type_asked_for_by_itself_that_of_the_source(
    method: str, asked: str, saved: torch.dtype, make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job("bfloat16", method=method, train={"max_steps": 3, "learning_rate": 5e-3, "save_dtype": asked})
    final, trained, _ = _finish(job, tmp_path, FSDP)
    found = load_file(final / ("model.safetensors" if method == "full" else "adapter_model.safetensors"))
    assert {tensor.dtype for tensor in found.values()} == {saved}
    if method == "full":
        assert json.loads((final / "config.json").read_text())["dtype"] == str(saved).removeprefix("torch.")
        assert all(torch.equal(found[name], weight.to(saved)) for name, weight in trained.weights.items())
        assert not all(torch.equal(weight.bfloat16().float(), weight) for weight in trained.weights.values())


@pytest.mark.parametrize("chosen", [FSDP, STAGES, SLICES], ids=["fsdp", "fsdp x pp", "fsdp x tp"])
def test_an_adapter_loads_with_peft(
    chosen: Execution, make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path
) -> None:
    from peft import AutoPeftModelForCausalLM, PeftModel
    from transformers import AutoModelForCausalLM

    job = make_job("untied", method="lora", train={"max_steps": 3})
    final, _, logits = _finish(job, tmp_path, chosen, clean=chosen is FSDP)
    base: Any = AutoModelForCausalLM.from_pretrained(models["untied"])
    plain = base(PROBE).logits
    adapted: Any = PeftModel.from_pretrained(base, str(final)).eval()
    assert torch.allclose(adapted(PROBE).logits, logits, atol=1e-5)
    assert not torch.allclose(plain, logits, atol=1e-5)
    assert not (final / "model.safetensors").exists()
    found: Any = AutoPeftModelForCausalLM.from_pretrained(str(final)).eval()
    assert torch.allclose(found(PROBE).logits, logits, atol=1e-5), "the adapter should find its base by itself"


@pytest.mark.parametrize("method", ["full", "lora"])
def test_mixed_precision_saves_what_it_trained(method: str, make_job: Callable[..., Job], tmp_path: Path) -> None:
    job = make_job("tied", method=method, train={"max_steps": 2, "precision": "mixed"})
    final, _, _ = _finish(job, tmp_path, execution(Layout(dp_shard=2), micro_batch_size=4, precision="mixed"))
    assert json.loads((final / "manifest.json").read_text())["files"]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_final_keeps_the_type_its_source_was_stored_in(
    method: str, make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path
) -> None:
    import shutil

    from transformers import AutoModelForCausalLM

    source = tmp_path / "source"
    shutil.copytree(models["untied"], source)
    AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).save_pretrained(source)
    job = make_job(method=method, train={"max_steps": 2, "precision": "mixed"})
    job = job.model_copy(update={"model": str(source)})
    chosen = execution(Layout(dp_shard=2), micro_batch_size=4, precision="mixed")
    final, _, _ = _finish(job, tmp_path / "run", chosen)
    tensors = load_file(next(final.glob("*model.safetensors")))
    expected = torch.bfloat16 if method == "full" else torch.float32  # adapters are small and stay as trained
    assert {tensor.dtype for tensor in tensors.values()} == {expected}
    if method == "full":
        assert json.loads((final / "config.json").read_text())["dtype"] == "bfloat16"


def test_the_manifest_holds_every_hash(make_job: Callable[..., Job], tmp_path: Path) -> None:
    import hashlib

    final, _, _ = _finish(make_job(train={"max_steps": 1}), tmp_path, execution())
    files = json.loads((final / "manifest.json").read_text())["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= files.keys()
    for name, record in files.items():
        assert hashlib.sha256((final / name).read_bytes()).hexdigest() == record["sha256"]


def _spoil(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    file = next(f for f in folder.glob("*model.safetensors"))
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


SPOILED: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a missing tensor": ("full", lambda t: t.pop("model.norm.weight"), "missing keys"),
    "an extra tensor": ("full", lambda t: t.update(stray=torch.ones(2)), "unexpected keys"),
    "NaN": ("full", lambda t: t["model.norm.weight"].fill_(float("nan")), "NaN"),
    "NaN logits": ("full", lambda t: t["model.norm.weight"].fill_(3e38), "logits differ from the live model's by nan"),
    "another model": ("full", lambda t: t["model.layers.0.mlp.up_proj.weight"].mul_(1.5), "logits differ"),
    "an adapter of zeros": ("lora", lambda t: [v.zero_() for k, v in t.items() if "lora_B" in k], "lora_B is zero"),
    "an adapter's missing tensor": ("lora", lambda t: t.pop(sorted(t)[0]), "missing"),
}


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")  # PEFT warns; the check must refuse
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_check_finds_what_is_wrong_with_a_folder(
    method: str, make_job: Callable[..., Job], models: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    import shutil

    final, _, logits = _finish(make_job("untied", method=method, train={"max_steps": 2}), tmp_path, execution())
    request = tmp_path / "probe.safetensors"
    save_file({"probe": PROBE, "logits": logits.contiguous()}, request)
    kinds = ["--compute-dtype", "float32", "--saved-dtype", "float32"]
    options = [str(request), *kinds, "--base", str(models["untied"])]
    assert check([str(final), *options]) == 0
    for name, (of_method, change, sentence) in SPOILED.items():
        if of_method != method:
            continue
        folder = tmp_path / name
        shutil.copytree(final, folder)
        _spoil(folder, change)
        capsys.readouterr()
        assert check([str(folder), *options]) == 1, name
        assert sentence in capsys.readouterr().err, name


def _save_a_model_that_moved(run: RunDirectory, chosen: Execution) -> str:
    """The live model changes between its logits and its files, as a broken gather would make it."""
    built = composed(run, chosen)
    journal = Journal(run=run, rank=built.world.rank)
    real = save.live_logits

    def moved(*arguments: Any) -> torch.Tensor:
        return real(*arguments) * 2

    save.live_logits = moved
    try:
        model = built.model
        save_final(model, run=run, journal=journal, probe=PROBE)
    except SaveError as error:
        return str(error)
    return "it was saved"


def _fill_the_disk(run: RunDirectory, chosen: Execution) -> str:
    """Rank 0's disk fills up in the middle of the weights; the others must not wait for it."""
    built = composed(run, chosen)
    real = export.ModelFiles.add
    calls: list[str] = []

    def full(self: export.ModelFiles, name: str, whole: torch.Tensor) -> None:
        calls.append(name)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(self, name, whole)

    export.ModelFiles.add = full  # type: ignore[method-assign]
    model = built.model
    with pytest.raises(SaveError) as caught:
        save_final(model, run=run, journal=Journal(run=run, rank=built.world.rank), probe=PROBE)
    return str(caught.value)


def test_a_disk_that_fills_on_one_rank_ends_all_with_one_sentence(make_job: Callable[..., Job], tmp_path: Path) -> None:
    said = run_world(2, _fill_the_disk, prepare_cell(make_job(), tmp_path), FSDP)
    assert said[0] == said[1]
    assert "failed on rank 0: OSError" in said[0]
    assert "No space left on device" in said[0]
    assert not list(tmp_path.glob(".final*"))


@pytest.mark.slow
def test_a_folder_that_is_not_the_live_model_never_becomes_final(make_job: Callable[..., Job], tmp_path: Path) -> None:
    run = prepare_cell(make_job(), tmp_path)
    said = run_world(1, _save_a_model_that_moved, run, execution())[0]
    assert "logits differ from the live model's" in said
    assert not run.final.exists()
    assert not list(tmp_path.glob(".final*"))
