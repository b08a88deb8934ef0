"""What `merge` writes is base and adapter, and what `chat` answers is what transformers generates."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from accelerate.utils import get_balanced_memory, infer_auto_device_map
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from shardwise.errors import DoesNotFitError, ModelError, WorkerFailedError
from shardwise.models.load import build_on_meta, read_config
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train import merging
from shardwise.train.chatting import Chat
from shardwise.train.saving.final import save_final
from shardwise.train.watching.journal import Journal
from tests.dist.cells import composed, execution, prepare_cell, train_on
from tests.dist.worlds import run_world, said_by

LORA = {"r": 4, "lora_alpha": 8}
QUESTION = [{"role": "user", "content": "red green"}]


def _train(run: RunDirectory, precision: str) -> None:
    built = composed(run, execution(precision=precision))
    train_on(run, built)
    save_final(built.model, run=run, journal=Journal(run=run, rank=0))


@pytest.fixture
def trained(make_job, tmp_path):
    """Trains an adapter on a toy."""

    def make(model: str, *, precision: str = "fp32", **job: Any) -> RunDirectory:
        train = {"max_steps": 3, "learning_rate": 2e-2, "warmup_steps": 0, "precision": precision}
        run = prepare_cell(make_job(model, **{"method": "lora", "train": train, **job}), tmp_path / "run")
        run_world(1, _train, run, precision)
        return run

    return make


def _merge(memory: int, *asked: Any) -> None:
    merging.available_memory = lambda: memory
    merging.merge(*asked)


def _merged(
    run: RunDirectory, *, dtype: str | None = None, dequantised: bool = False, memory: int = 2**40
) -> dict[str, Any]:
    """What merging says with some memory that is free; the merged folder keeps a copy."""
    run_world(1, _merge, memory, str(run.root), str(run.merged), dtype, dequantised)
    return (read_json(run.merged / "manifest.json") or {})["merged"]


#: Prints the largest difference of a logit, merged and not, relative to the largest logit, and of base and merged.
LOADING = """
import sys, torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
base, adapter, merged = sys.argv[1:]
ids = torch.tensor([AutoTokenizer.from_pretrained(merged)("red green blue one two")["input_ids"]])
one = AutoModelForCausalLM.from_pretrained(base)
before = one(ids).logits
expected = PeftModel.from_pretrained(one, adapter).eval()(ids).logits
found = AutoModelForCausalLM.from_pretrained(merged)(ids).logits
print(*(float((other - expected).abs().max() / expected.abs().max()) for other in (found, before)))
"""


def test_a_merged_model_loads_in_a_clean_process_with_the_logits_of_base_and_adapter(trained, models) -> None:
    run = trained("untied")
    said = _merged(run)
    assert (said["onto"], said["dtype"], said["rows"]) == ("base", "float32", "8 training rows")
    assert said["difference"] <= 1e-5 * max(1.0, said["largest_logit"])
    command = [sys.executable, "-c", LOADING, str(models["untied"]), str(run.final), str(run.merged)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    apart, moved = map(float, done.stdout.split())
    assert apart <= 1e-5
    assert moved > 1e-2
    assert (run.merged / "tokenizer.json").is_file() and not list(run.root.glob(".merged*"))


#: Base, what is said of the adapter, and whether the merged model is tied.
ADAPTERS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "a tied base": ("tied", {}, True),
    "DoRA": ("untied", {"use_dora": True}, False),
    "a trained copy of a tied head": ("tied", {"modules_to_save": ["lm_head"]}, False),
    "an adapted tied head": ("tied", {"target_modules": ["q_proj", "lm_head"]}, False),
    "a head that files call otherwise": ("gpt_neox", {"modules_to_save": ["lm_head"]}, False),
    "transposed matrices": ("gpt2", {}, True),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT's, of tied weights and of transposed ones
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_every_kind_are_merged(name, trained, models) -> None:
    model, lora, tied = ADAPTERS[name]
    run = trained(model, lora={**LORA, **lora})
    said = _merged(run)
    assert said["difference"] <= 1e-5 * max(1.0, said["largest_logit"])
    ids = torch.arange(3, 40).unsqueeze(0)
    base: Any = AutoModelForCausalLM.from_pretrained(models[model])
    before = base(ids).logits.detach()
    expected = PeftModel.from_pretrained(base, str(run.final)).eval()(ids).logits.detach()
    loaded: Any = AutoModelForCausalLM.from_pretrained(run.merged)
    assert torch.allclose(loaded(ids).logits, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    assert not torch.allclose(before, expected, atol=1e-3)
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) == tied


def test_a_merged_model_has_its_base_s_type_or_the_one_asked_for(trained) -> None:
    run = trained("bfloat16", precision="mixed")
    said = _merged(run)
    assert said["dtype"] == json.loads((run.merged / "config.json").read_text())["dtype"] == "bfloat16"
    assert said["exact_difference"] <= 1e-5 * max(1.0, said["largest_logit"]) < said["difference"] < 0.1
    assert _merged(run, dtype="float32")["difference"] == pytest.approx(said["exact_difference"], abs=1e-6)
    small = _merged(run, memory=100_000)
    assert (said["computed_in"], small["computed_in"]) == ("float32", "bfloat16")
    assert small["difference"] <= 0.1 * small["largest_logit"]


def test_qlora_is_merged_into_the_base_as_it_lies_or_as_training_computed_with_it(trained) -> None:
    run = trained("wide", method="qlora", lora=LORA)
    plain, dequantised = _merged(run), _merged(run, dequantised=True)
    assert (plain["onto"], dequantised["onto"]) == ("unquantised", "dequantised")
    assert plain["difference"] > 1e-3 > 1e-5 * max(1.0, plain["largest_logit"]) >= dequantised["difference"]


def test_a_base_that_has_changed_since_is_refused(trained, models, tmp_path) -> None:
    run = trained("untied")
    base = shutil.copytree(models["untied"], tmp_path / "base")
    adapter = run.final / "adapter_config.json"
    adapter.write_text(json.dumps({**json.loads(adapter.read_text()), "base_model_name_or_path": str(base)}))
    _merged(run)
    (base / "config.json").write_text((base / "config.json").read_text() + "\n")
    said = run_world(1, said_by, ModelError, merging.merge, str(run.root), str(tmp_path / "new"), None, False)[0]
    assert said.startswith(f"{base}/config.json: is another file than the adapter in {run.final} was trained on")
    assert not (tmp_path / "new").exists()


def _merge_with_a_slip(run: RunDirectory) -> str:
    real = merging._save

    def slipping(model: Any, *others: Any) -> None:
        model.get_output_embeddings().weight.data[0, 0] += 1
        real(model, *others)

    merging._save = slipping
    return said_by(WorkerFailedError, merging.merge, str(run.root), str(run.merged), None, False)


def test_a_folder_with_other_logits_is_not_kept(trained) -> None:
    run = trained("untied")
    said = run_world(1, _merge_with_a_slip, run)[0]
    assert "logits of the merged model differ by up to" in said
    assert "from those of what was to be written" in said
    assert not list(run.root.glob("*merged*"))


def _answers(run: RunDirectory, part: str) -> tuple[str, int, int, set[str]]:
    """An answer, bytes of weights and of a token, and the classes of the model's modules."""
    chat = Chat(run, part, max_new_tokens=12, temperature=0.0)
    chat.load(QUESTION)
    return (
        chat.answer(QUESTION).text,
        chat.weights,
        chat.token,
        {type(module).__name__ for module in chat._model.modules()},
    )


@pytest.mark.parametrize(("method", "model"), [("lora", "untied"), ("full", "tied")])
def test_chat_answers_as_transformers_generates(method, model, trained, models) -> None:
    run = trained(model, method=method)
    answer, weights, token, _ = run_world(1, _answers, run, "trained")[0]
    base: Any = AutoModelForCausalLM.from_pretrained(models[model])
    adapter = (run.final / "adapter_model.safetensors").stat().st_size if method == "lora" else 0
    assert weights == sum(p.nbytes for p in base.parameters()) + adapter
    assert token == 2 * 3 * 2 * base.config.head_dim * 4, "keys and values of 3 layers and 2 heads in float32"
    loaded: Any = AutoModelForCausalLM.from_pretrained(run.final) if method == "full" else base
    if method == "lora":
        loaded = PeftModel.from_pretrained(base, str(run.final)).eval()
        _merged(run)
        assert run_world(1, _answers, run, "merged")[0][0] == answer
    assert run_world(1, _answers, run, "base")[0][0] != answer
    tokenizer = AutoTokenizer.from_pretrained(run.final)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    tokens = loaded.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert answer == tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def test_chat_loads_the_base_of_qlora_in_4_bits(trained, models) -> None:
    _, weights, _, kinds = run_world(1, _answers, trained("wide", method="qlora", lora=LORA), "trained")[0]
    assert "Linear4bit" in kinds
    assert weights < sum(p.nbytes for p in AutoModelForCausalLM.from_pretrained(models["wide"]).parameters()) / 1.5


def _refusals(run: RunDirectory) -> list[str]:
    chat = Chat(run, "trained", max_new_tokens=100, temperature=0.0)
    chat.free = int((chat.weights + 50 * chat.token) / 0.95) + 20
    long = [{"role": "user", "content": "red " * 200}]
    return [said_by(DoesNotFitError, chat.load, one) for one in (QUESTION, long)]


def test_what_does_not_fit_is_refused_before_weights_are_loaded_with_the_length_that_fits(trained) -> None:
    short, long = run_world(1, _refusals, trained("untied"))[0]
    assert "39 tokens and an answer of 89 take 48.0 KiB of keys and values beside 2" in short
    assert short.endswith(" of memory are free: 50 tokens fit; lower --max-new-tokens, or add memory")
    assert (
        long.startswith("the conversation has ") and "tokens, and the model reads 128; write a shorter prompt" in long
    )


def _placed(run: RunDirectory, free: float) -> set[Any]:
    """Where accelerate puts the layers of a model on two GPUs of `free` times half the weights."""
    chat = Chat(run, "base", max_new_tokens=12, temperature=0.0)
    chat._gpus = dict.fromkeys((0, 1), int(free * chat.weights / 2))
    model = build_on_meta(read_config(chat._folder), attn_implementation="eager")
    memory = get_balanced_memory(model, max_memory=chat.shares(20), no_split_module_classes=model._no_split_modules)
    layers = infer_auto_device_map(model, max_memory=memory, no_split_module_classes=model._no_split_modules)
    return set(layers.values())


def test_layers_are_spread_over_all_gpus(trained) -> None:
    run = trained("deep wide")
    assert run_world(1, _placed, run, 1.6)[0] == {0, 1}
    assert run_world(1, _placed, run, 0.6)[0] > {0, 1}, "some are left on the disk, which a chat refuses"
