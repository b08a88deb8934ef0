"""`final/` is what was trained, in the form others load, and nothing else gets that name."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import AutoPeftModelForCausalLM, PeftModel
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, conversion_mapping
from transformers.core_model_loading import Chunk, Split, WeightConverter

from shardwise.models.weights import Weights
from shardwise.spec.job.keys import Job
from shardwise.spec.layout.axes import Layout
from shardwise.spec.layout.execution import Execution
from shardwise.spec.result import result_fault
from shardwise.spec.run import RunDirectory, write_json
from shardwise.train.build import Build
from shardwise.train.result import stop_ids
from shardwise.train.saving import check, export, final
from shardwise.train.saving.atomic import SaveError
from tests.dist.cells import (
    OPTIMIZERS,
    Trained,
    composed,
    execution,
    outcome,
    prepare_cell,
    run_built,
    save,
    spread,
    train_on,
)
from tests.dist.compare import must_equal, must_record_the_same
from tests.dist.programs import printed
from tests.dist.worlds import run_world, said_by


def _train_and_save(built: Build, shard_bytes: int) -> tuple[Trained, float]:
    """What was trained, and the live model's loss over the first global batch."""
    export.SHARD_BYTES = shard_bytes
    train_on(built)
    save(built)
    built.model.set_training(False)
    return outcome(built), built.step.evaluate(next(iter(built.batches.from_(0))))


def finish(job: Job, root: Path, chosen: Execution, *, shard_bytes: int = 10**9) -> tuple[Path, Trained, float]:
    """Trains and saves."""
    run = prepare_cell(job, root)
    trained, loss = run_built(_train_and_save, run, chosen, shard_bytes)[0]
    return run.final, trained, loss


def _first_batch(built: Build) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Token ids and labels, shape [1, length], of the samples of the first global batch."""
    found = [built.data.sample(sample) for sample in next(iter(built.batches.from_(0))).sample_ids]
    return [(torch.from_numpy(ids).unsqueeze(0), torch.from_numpy(labels)) for ids, _, labels in found]


@torch.no_grad()
def loss_of(model: Any, final: Path) -> float:
    """The summed loss of a loaded model over the first global batch."""
    (batch,) = run_built(_first_batch, RunDirectory(final.parent), execution())
    losses = [cross_entropy(model(ids).logits[0].float(), labels, reduction="sum") for ids, labels in batch]
    return float(torch.stack(losses).sum())


def must_load(finished: tuple[Path, Trained, float], *, loader: Any = AutoModelForCausalLM) -> Any:
    """`final/` is read as the weights that were trained, with their loss; the loaded model."""
    final, trained, loss = finished
    loaded, info = loader.from_pretrained(final, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert [n for n, w in trained.weights.items() if not torch.equal(loaded.get_parameter(n), w)] == []
    assert loss_of(loaded.eval(), final) == pytest.approx(loss, rel=1e-5)
    return loaded


def quantised(base: Path, final: Path) -> Any:
    """A base model, by bitsandbytes in 4 bits where a result says so."""
    said, asked = final / "quantization_config.json", {}
    if said.is_file():
        asked = {"quantization_config": BitsAndBytesConfig.from_dict(json.loads(said.read_text()))}
    model: Any = AutoModelForCausalLM.from_pretrained(base, **asked)
    for module in model.modules():
        # Without gradients bitsandbytes multiplies in bfloat16 on some CPUs.
        vars(module)["support_avx512bf16_for_cpu"] = False
    return model


def adapted(base: Path, final: Path) -> Any:
    """A base model with the adapter of a result, as PEFT loads it."""
    return PeftModel.from_pretrained(quantised(base, final), str(final)).eval()


FSDP = spread(Layout(dp_shard=2))
STAGES = spread(Layout(pp=2, dp_shard=2), micros=2)
SLICES = spread(Layout(dp_shard=2, tp=2))
CHUNKS = spread(Layout(pp=2, schedule="interleaved"), micros=4)


@pytest.mark.parametrize(
    "chosen", [FSDP, STAGES, CHUNKS, SLICES], ids=["fsdp", "fsdp x pp", "interleaved", "fsdp x tp"]
)
@pytest.mark.parametrize("model", ["deep untied", "deep tied", "phi3"])
def test_a_full_model_loads_with_from_pretrained(model, chosen, make_job, tmp_path) -> None:
    finished = final, *_ = finish(make_job(model, train={"max_steps": 3}), tmp_path, chosen, shard_bytes=40_000)
    assert (final / "model.safetensors.index.json").is_file(), "the small limit should give several weight files"
    must_load(finished)
    files = json.loads((final / "manifest.json").read_text())["files"]
    assert {"model.safetensors.index.json", "config.json", "tokenizer.json"} <= files.keys()
    assert len(list(final.glob("*.safetensors"))) == sum(name.endswith(".safetensors") for name in files)
    assert result_fault(final) is None
    tokenizer = AutoTokenizer.from_pretrained(final)
    assert tokenizer.pad_token == "<pad>"
    assert tokenizer.chat_template, "the default template the rows were rendered with belongs to the model now"


@pytest.mark.slow
def test_weights_that_files_call_otherwise_are_saved_as_transformers_does(single, make_job, models, tmp_path) -> None:
    job = make_job("gpt_neox", train=OPTIMIZERS["sgd"])
    finished = final, trained, _ = finish(job, tmp_path / "fsdp", replace(FSDP, optimizer="sgd"))
    must_equal(single(job), [trained])
    loaded: Any = AutoModelForCausalLM.from_pretrained(models["gpt_neox"])
    loaded.save_pretrained(tmp_path / "theirs")
    theirs, ours = (load_file(folder / "model.safetensors") for folder in (tmp_path / "theirs", final))
    assert "embed_out.weight" in ours, "GPT-NeoX's head is lm_head in the model"
    assert ours.keys() == theirs.keys()
    must_load(finished)


@pytest.fixture
def fused(models: dict[str, Path], tmp_path: Path) -> Iterator[Path]:
    """The untied toy, of whose files transformers cuts weights by rows, evenly or not."""
    cuts = [
        WeightConverter("qkv_proj", ["q_proj", "k_proj", "v_proj"], [Split(dim=0)]),
        WeightConverter("gate_up_proj", ["gate_proj", "up_proj"], [Chunk(dim=0)]),
    ]
    folder = shutil.copytree(models["untied"], tmp_path / "fused")  # made before its family has cuts
    weights = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    conversion_mapping.register_checkpoint_conversion_mapping("llama", cuts)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    model.load_state_dict(weights)
    model.save_pretrained(folder)
    yield folder
    conversion_mapping._checkpoint_conversion_mapping_cache.pop("llama")
    conversion_mapping.USER_REGISTERED_MAPPINGS.discard("llama")


@pytest.mark.parametrize("chosen", [spread(Layout(pp=2), micros=2), FSDP, SLICES], ids=["pp", "fsdp", "fsdp x tp"])
def test_weights_that_transformers_cuts_by_rows_are_trained_and_saved_whole(
    chosen, single, make_job, fused, tmp_path
) -> None:
    plain = make_job("untied", train=OPTIMIZERS["sgd"])
    job = plain.model_copy(update={"model": str(fused)})
    finished = final, trained, _ = finish(job, tmp_path / "run", replace(chosen, optimizer="sgd"), shard_bytes=40_000)
    must_record_the_same(single(plain), trained)
    assert Weights(final).names == Weights(fused).names > {"model.layers.0.self_attn.qkv_proj.weight"}
    must_load(finished)


BF16, FP32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("method", "asked", "saved"),
    [("full", "auto", BF16), ("full", "float32", FP32), ("lora", "auto", FP32), ("lora", "bfloat16", BF16)],
)
def test_weights_are_saved_in_the_type_asked_for_or_of_the_source(method, asked, saved, make_job, tmp_path) -> None:
    """Training in mixed precision, of a model that is stored in bfloat16."""
    train = {"max_steps": 3, "learning_rate": 5e-3, "save_dtype": asked, "precision": "mixed"}
    job = make_job("bfloat16", method=method, train=train)
    final, trained, _ = finish(job, tmp_path, replace(FSDP, precision="mixed"))
    found = load_file(final / ("model.safetensors" if method == "full" else "adapter_model.safetensors"))
    assert {tensor.dtype for tensor in found.values()} == {saved}
    if method == "full":
        assert json.loads((final / "config.json").read_text())["dtype"] == str(saved).removeprefix("torch.")
        assert all(torch.equal(found[name], weight.to(saved)) for name, weight in trained.weights.items())
        assert not all(torch.equal(weight.bfloat16().float(), weight) for weight in trained.weights.values())


@pytest.mark.parametrize(
    ("method", "model", "chosen"),
    [*(("lora", of, one) for of in ("untied", "phi3") for one in (FSDP, STAGES, SLICES)), ("qlora", "wide", SLICES)],
)
def test_peft_and_bitsandbytes_load_an_adapter(method, model, chosen, make_job, models, tmp_path, monkeypatch) -> None:
    final, _, loss = finish(make_job(model, method=method, train={"max_steps": 3}), tmp_path, chosen)
    assert loss_of(quantised(models[model], final), final) != pytest.approx(loss, rel=1e-5)
    assert loss_of(adapted(models[model], final), final) == pytest.approx(loss, rel=1e-5)
    assert not (final / "model.safetensors").exists()
    if method == "lora":
        monkeypatch.chdir(models[model].parent)
        found: Any = AutoPeftModelForCausalLM.from_pretrained(str(final)).eval()
        assert loss_of(found, final) == pytest.approx(loss, rel=1e-5), "the adapter should find its base by its name"


#: Opens a folder as programs do that know nothing of it; prints how many adapters it has.
OPENING = """
import sys
from transformers import AutoModelForCausalLM, pipeline
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(sum(name.endswith("lora_A") for name, _ in model.named_modules()))
assert pipeline("text-generation", model=sys.argv[1])("red green", max_new_tokens=4)
"""


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_an_adapter_opens_by_its_folder_alone(method, project, tmp_path) -> None:
    final, _, _ = finish(project("wide", method=method), tmp_path / "project/runs/first", execution())
    said = json.loads((final / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert said == "models/base", "the name that the job gave"
    assert printed("-c", OPENING, final).split()[0] == "21", "seven matrices of three blocks"
    code = (final / "README.md").read_text().split("```python")[1].split("```")[0]
    (tmp_path / "base").symlink_to(tmp_path / "project/models/base")
    (tmp_path / "first").symlink_to(final)
    shown = f"{code}\nprint(type(model).__name__, len(tokenizer))"
    assert printed("-c", shown, folder=tmp_path).split()[0] == "PeftModelForCausalLM", "as the card says"


@pytest.mark.parametrize(("method", "model"), [("full", "tied"), ("lora", "untied"), ("qlora", "wide")])
def test_no_file_of_a_result_names_a_place_of_this_machine(method, model, make_job, models, tmp_path) -> None:
    base = shutil.copytree(models[model], tmp_path / "my base")
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        said = json.loads((base / name).read_text()) if (base / name).is_file() else {"eos_token_id": 2}
        (base / name).write_text(json.dumps({**said, "_name_or_path": str(base), "name_or_path": str(base)}))
    job = make_job(model, method=method, train={"max_steps": 2}).model_copy(update={"model": str(base)})
    write_json(tmp_path / "first/environment.json", {"torch": "2.13.0", "peft": None})
    final, _, _ = finish(job, tmp_path / "first", execution())
    for path in final.iterdir():
        found = [mark for mark in (str(tmp_path), job.data.path[0].path) if mark.encode() in path.read_bytes()]
        assert not found, path.name
    card = (final / "README.md").read_text()
    front = yaml.safe_load(card.split("---")[1])
    assert front["base_model"] == "my base"
    assert front["library_name"] == ("transformers" if method == "full" else "peft")
    assert "license" not in front and "datasets" not in front
    assert "`my base` is the name of a folder on the machine that trained it. Before publishing, put the hub id" in card
    for fact in ("data | `train.jsonl` |", "steps | 2 |", "loss of the first and last step | ", "torch 2.13.0 |"):
        assert f"| {fact}" in card


def _save_what_ends_in(run: RunDirectory, told: dict[str, Any] | None) -> None:
    data = json.loads(run.data.read_text())
    data.pop("ends", None)
    run.data.write_text(json.dumps(data if told is None else {**data, "ends": told}))
    save(composed(run, execution()))


def _ends(*tokens: tuple[int, str, int], unmarked: int = 0) -> dict[str, Any]:
    return {"tokens": [{"id": i, "text": text, "count": n} for i, text, n in tokens], "unmarked": unmarked}


#: How answers were trained to end; where a result stops, and what of that is said of it.
ENDS: list[tuple[dict[str, Any] | None, list[int] | None, list[str]]] = [
    (_ends((5, "<|im_end|>", 20)), [2, 5], ["<|im_end|>"]),
    (_ends((5, "<|im_end|>", 6), (6, "<|eom|>", 3), unmarked=3), [2, 5], ["<|im_end|>"]),
    (_ends((2, "<eos>", 20)), None, []),
    (_ends((5, "<|im_end|>", 4), unmarked=16), None, []),
    (None, None, []),
]


def test_a_result_stops_where_most_answers_were_trained_to_end(make_job, models, tmp_path) -> None:
    run = prepare_cell(make_job("tied"), tmp_path / "first")
    before = AutoModelForCausalLM.from_pretrained(models["tied"]).generation_config.eos_token_id
    for told, stops, added in ENDS:
        run_world(1, _save_what_ends_in, run, told)
        assert json.loads((run.final / "manifest.json").read_text())["stops"] == added
        assert AutoModelForCausalLM.from_pretrained(run.final).generation_config.eos_token_id == (stops or before)
        assert stop_ids(run.final) == ({*stops} if stops else {2})


def _save_again(built: Build) -> None:
    final = built.checkpoints.run.final
    for text in ("first", "second"):
        save(built)
        assert "# run" in (final / "README.md").read_text(), "our own card is written anew"
        (final / "LICENSE").write_text(text)
    (final / "README.md").write_text("mine")
    save(built)


def test_what_a_person_put_into_a_result_stays_when_it_is_written_again(make_job, tmp_path) -> None:
    run = prepare_cell(make_job("untied", method="lora"), tmp_path / "run")
    run_built(_save_again, run, execution())
    assert (run.final / "README.md").read_text() == "mine"
    assert (run.final / "LICENSE").read_text() == "second"
    assert result_fault(run.final) is None
    assert "LICENSE" not in json.loads((run.final / "manifest.json").read_text())["files"]


NORM = "model.norm.weight"
SPOILED: dict[str, tuple[str, Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a missing tensor": ("full", lambda t: t.pop(NORM), "model.norm.weight is missing"),
    "an extra tensor": ("full", lambda t: t.update(stray=torch.ones(2)), "stray has no place in the model"),
    "a bit": ("full", lambda t: t[NORM].view(torch.int32)[3:4].add_(1), "norm.weight is not the live"),
    "another type": ("full", lambda t: t.update({k: v.half() for k, v in t.items()}), "is not the live weight"),
    "another shape": ("full", lambda t: t.update({NORM: t[NORM][:-1].clone()}), "model.norm.weight has the shape"),
    "an adapter's bit": ("lora", lambda t: t[sorted(t)[0]].view(torch.int32)[0, :1].add_(1), "is not the live weight"),
    "an adapter's missing tensor": ("lora", lambda t: t.pop(sorted(t)[0]), "is missing"),
}


def _said_of_spoiled(built: Build, method: str) -> dict[str, str]:
    """What the check says of each way to spoil a saved folder."""
    check._AT_ONCE = 7  # each tensor in several parts
    save(built, trained=False)
    run = built.checkpoints.run
    said: dict[str, str] = {}
    for name, (of_method, change, _) in SPOILED.items():
        folder = run.root / name
        if of_method != method:
            continue
        if built.world.is_first:
            (file,) = Path(shutil.copytree(run.final, folder)).glob("*model.safetensors")
            tensors = load_file(file)
            change(tensors)
            save_file(tensors, file, {"format": "pt"})
        torch.distributed.barrier()
        said[name] = said_by(SaveError, final.check_folder, built.model, folder)
    return said


@pytest.mark.parametrize("chosen", [execution(), FSDP], ids=["single", "fsdp"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_check_finds_what_is_wrong_with_a_folder(method, chosen, make_job, tmp_path) -> None:
    for said in run_built(_said_of_spoiled, prepare_cell(make_job("untied", method=method), tmp_path), chosen, method):
        assert len(said) >= 2
        for name, sentence in said.items():
            assert SPOILED[name][2] in sentence, name
            assert "the saved folder is not the trained model: " in sentence


def _save_odd_weights(built: Build, value: float) -> None:
    if value:
        with torch.no_grad():
            dict(built.model.parameters)[NORM].fill_(value)
    save(built)


@pytest.mark.parametrize(
    ("method", "value", "sentence"),
    [
        ("full", float("nan"), "model.norm.weight holds NaN or infinity"),
        ("lora", 0.0, "every lora_B is zero: the adapter changes nothing"),
    ],
)
def test_weights_that_look_wrong_are_saved_as_they_are_and_told(method, value, sentence, make_job, tmp_path) -> None:
    run = prepare_cell(make_job("untied", method=method), tmp_path)
    run_built(_save_odd_weights, run, FSDP, value)
    assert f"final/ holds what was trained, but {sentence}" in run.notices.read_text()
    assert (run.final / "manifest.json").is_file()


def _save_where(built: Build, fault: str) -> str:
    """What is said where weights change meanwhile (`moved`), or rank 0's disk gets `full`."""
    calls, copies, add = list[str](), final.copy_configuration, export.Files.add

    def moved(*arguments: Any) -> None:
        copies(*arguments)
        with torch.no_grad():
            built.model.trainable[0].add_(1)

    def full(self: export.Files, name: str, whole: torch.Tensor) -> None:
        calls.append(name)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        add(self, name, whole)

    if fault == "moved":
        final.copy_configuration = moved
    else:
        export.Files.add = full  # type: ignore[method-assign]
    return said_by(SaveError, save, built)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [("moved", "is not the live weight"), ("full", "failed on rank 0: No space left on device: ")],
)
def test_a_folder_that_is_not_the_live_model_never_becomes_final(fault, sentence, make_job, tmp_path) -> None:
    run = prepare_cell(make_job(), tmp_path)
    said = run_built(_save_where, run, FSDP, fault)
    assert said[0] == said[1]
    assert sentence in said[0]
    assert (f" were to be written, and the disk of {tmp_path} had " in said[0]) == (fault == "full")
    assert not run.final.exists() and not list(tmp_path.glob(".final*"))
