"""`merge` writes base and adapter, and `chat` answers what transformers generates."""

import json
import shutil
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.utils import get_balanced_memory, infer_auto_device_map
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from shardwise.errors import DoesNotFitError, InputError, ModelError, WorkerFailedError
from shardwise.models.load import build_on_meta, read_config
from shardwise.models.nf4_experts import NF4Stack
from shardwise.spec.job.file import read_job
from shardwise.spec.result import result_fault
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train import merging
from shardwise.train.chatting import Chat
from shardwise.train.result import base_of, find_base
from tests.dist.cells import composed, execution, save, save_cell
from tests.dist.tiny import tiny_config
from tests.dist.worlds import run_world, said_by

LORA = {"r": 4, "lora_alpha": 8}
QUESTION = [{"role": "user", "content": "red green"}]


def _merge(run: RunDirectory, dtype: str | None, dequantised: bool, base_model: str | None, memory: int) -> None:
    merging.available_memory = lambda: memory
    merging.merge(str(run.root), str(run.merged), dtype, dequantised, base_model)


def merged(run: RunDirectory, *, dtype=None, dequantised=False, base_model=None, memory=2**40) -> dict[str, Any]:
    """What merging says with some memory that is free; the merged folder keeps a copy."""
    run_world(1, _merge, run, dtype, dequantised, base_model, memory)
    return (read_json(run.merged / "manifest.json") or {})["merged"]


#: Base, what is said of the adapter, and whether the merged model is tied.
ADAPTERS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "a base": ("untied", {}, False),
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
    said = merged(run)
    assert (said["onto"], said["dtype"], said["rows"]) == ("base", "float32", "8 training rows")
    assert said["difference"] <= 1e-5 * max(1.0, said["largest_logit"])
    assert AutoTokenizer.from_pretrained(run.merged)("red green")["input_ids"]
    assert not list(run.root.glob(".merged*"))
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
    said = merged(run)
    assert said["dtype"] == json.loads((run.merged / "config.json").read_text())["dtype"] == "bfloat16"
    assert said["exact_difference"] <= 1e-5 * max(1.0, said["largest_logit"]) < said["difference"] < 0.1
    assert merged(run, dtype="float32")["difference"] == pytest.approx(said["exact_difference"], abs=1e-6)
    small = merged(run, memory=100_000)
    assert (said["computed_in"], small["computed_in"]) == ("float32", "bfloat16")
    assert small["difference"] <= 0.1 * small["largest_logit"]


@pytest.mark.parametrize("model", ["wide", "wide qwen3_moe"])
def test_qlora_is_merged_into_the_base_as_it_lies_or_as_training_computed_with_it(model, trained) -> None:
    run = trained(model, method="qlora", lora={**LORA, "target_modules": ["q_proj", "o_proj"]})
    plain, dequantised = merged(run), merged(run, dequantised=True)
    assert (plain["onto"], dequantised["onto"]) == ("unquantised", "dequantised")
    if model == "wide":
        assert plain["difference"] > 1e-3 > 1e-5 * max(1.0, plain["largest_logit"]) >= dequantised["difference"]
        return
    base: Any = AutoModelForCausalLM.from_pretrained(read_job(run.resolved).model)
    name = "model.layers.1.mlp.experts.down_proj"
    stack = NF4Stack(name="down_proj", shape=(128, 24), dtype=torch.float32)
    expected = stack.written_out(*stack.quantise([*base.get_parameter(name).detach()]))
    found: Any = AutoModelForCausalLM.from_pretrained(run.merged)
    assert torch.equal(found.get_parameter(name), expected)


def test_a_base_that_has_changed_since_is_refused(trained, models, tmp_path) -> None:
    run = trained("untied")
    base = shutil.copytree(models["untied"], tmp_path / "base")
    merged(run, base_model=str(base))
    (base / "config.json").write_text((base / "config.json").read_text() + "\n")
    asked = (str(run.root), str(tmp_path / "new"), None, False, str(base))
    said = run_world(1, said_by, ModelError, merging.merge, *asked)[0]
    assert said.startswith(f"{base}/config.json: is another file than the adapter in {run.final} was trained on")
    assert said.endswith("name the folder or hub id of that model by --base-model")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def of_project(project, tmp_path):
    """Trains a model that the job names from the folder of a project."""

    def make(model: str = "untied", **job: Any) -> RunDirectory:
        return save_cell(project(model, **{"method": "lora", **job}), tmp_path / "project/runs/first", execution())

    return make


def _set_base(run: RunDirectory, name: str) -> None:
    path = run.final / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "base_model_name_or_path": name}))


def test_a_run_finds_its_base_in_the_project_that_it_moved_with(of_project, tmp_path, monkeypatch) -> None:
    here = of_project().root.parents[1]
    copy = RunDirectory(shutil.copytree(here, tmp_path / "copy") / "runs/first")
    assert find_base(copy) == tmp_path / "copy/models/base", "its own, not the original's in the working directory"
    monkeypatch.chdir("/")
    assert find_base(copy) == tmp_path / "copy/models/base"
    moved = RunDirectory((tmp_path / "copy").rename(tmp_path / "renamed") / "runs/first")
    assert base_of(moved)[0] == tmp_path / "renamed/models/base"
    _set_base(moved, "org/name")
    assert find_base(moved) == tmp_path / "renamed/models/base", "a name set by hand is for others"
    assert result_fault(moved.final) is None
    alone = RunDirectory(moved.root.rename(tmp_path / "alone"))
    monkeypatch.chdir(tmp_path / "renamed")
    assert find_base(alone).resolve() == tmp_path / "renamed/models/base", "from where the job is run"


def test_a_base_that_is_gone_is_named_with_the_way_out(of_project, models, tmp_path) -> None:
    run = of_project()
    (tmp_path / "project/models").rename(tmp_path / "aside")
    gone = "models/base: is the folder of the base model, and is neither"
    assert said_by(ModelError, find_base, run) == (
        f"{gone} in {tmp_path}/project nor in a folder around {run.root}; where it has moved, name its folder or hub "
        "id by --base-model"
    )
    assert find_base(run, str(tmp_path / "aside/base")) == tmp_path / "aside/base"
    said = said_by(ModelError, find_base, run, str(models["tied"]))
    assert f"is another file than the adapter in {run.final} was trained on" in said
    assert "is neither a folder nor a model the hub gives" in said_by(ModelError, find_base, run, "../nowhere")
    # As of a model that was trained in full, whose base `chat --base` asks.
    (run.final / "adapter_config.json").unlink()
    assert said_by(ModelError, find_base, run).startswith(gone)


def test_results_of_earlier_versions_are_read(of_project, tmp_path) -> None:
    run = of_project("wide", method="qlora", lora=LORA)
    quantised = run.final / "quantization_config.json"
    (run.final / "config.json").write_text(json.dumps({"quantization_config": json.loads(quantised.read_text())}))
    quantised.unlink()
    base = (tmp_path / "project/models/base").rename(tmp_path / "elsewhere")
    _set_base(run, str(base))
    found, how = base_of(run)
    assert (found, how.bnb_4bit_quant_type, how.bnb_4bit_compute_dtype) == (base, "nf4", torch.float32)


@pytest.mark.slow
def test_large_updates_that_float32_rounds_are_looked_at_in_float64(trained) -> None:
    run = trained("untied", lora={"r": 24, "lora_alpha": 48, "use_rslora": True})
    adapter = run.final / "adapter_model.safetensors"
    first, found = load_file(adapter), []
    for larger in (30, 60, 100, 200, 300):
        save_file({name: larger * t if "lora_B" in name else t for name, t in first.items()}, adapter)
        said = merged(run)
        if said["float64_difference"] is not None:
            found.append(said)
            limit = 1e-5 * max(1.0, said["largest_logit"])
            assert said["float64_difference"] <= limit < said["exact_difference"]
            assert said["exact_difference"] == pytest.approx(said["difference"], rel=1e-3)
    assert found, "the updates should be large enough for float32 to round"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of PEFT's own patterns for stacked experts
def test_a_mixture_is_looked_at_in_float64(trained) -> None:
    """Grouped products of experts take no float64."""
    run = trained("qwen3_moe")
    given = (Path(read_job(run.resolved).model), run, [torch.arange(3, 40).unsqueeze(0)])
    assert run_world(1, partial(merging._in_float64, onto=None, elements=1), *given)[0] <= 1e-12


def test_states_that_a_recurrence_keeps_of_a_row_are_none_for_the_next(trained, models, tmp_path) -> None:
    folder = shutil.copytree(models["untied"], tmp_path / "xlstm")
    AutoModelForCausalLM.from_config(tiny_config("xlstm")).save_pretrained(folder)
    said = merged(trained(folder, attn_implementation="eager"))
    assert said["difference"] <= 1e-5 * max(1.0, said["largest_logit"])


def _merge_where(run: RunDirectory, fault: str, amount: int = 2**40, error: type[Exception] = WorkerFailedError) -> str:
    """What is said of a `wrong` merge, a `slip` in saving, a disk that is `full` or `fills`."""
    adapted, save = merging._adapted, merging._save

    def spoil(model: Any) -> Any:
        model.get_output_embeddings().weight.data[0, 0] += 1
        return model

    def wrong(*given: Any, **options: Any) -> Any:
        model = adapted(*given, **options)
        unload = model.merge_and_unload
        model.merge_and_unload = lambda: spoil(unload())
        return model

    def fills(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    faults: dict[str, tuple[str, Any]] = {
        "wrong": ("_adapted", wrong),
        "slip": ("_save", lambda model, *others: save(spoil(model), *others)),
        "full": ("free_disk", lambda _: amount),
        "fills": ("_save", fills),
    }
    merging.available_memory = lambda: amount if fault == "wrong" else 2**40
    setattr(merging, *faults[fault])
    return said_by(error, merging.merge, str(run.root), str(run.merged), "float32" if fault == "full" else None, False)


def test_what_differs_in_float64_too_or_from_what_was_to_be_written_is_not_kept(trained) -> None:
    run = trained("untied")
    said = run_world(1, _merge_where, run, "wrong")[0]
    assert "logits of the merged model differ by up to" in said and "(in float64 by " in said
    small = run_world(1, _merge_where, run, "wrong", 300_000)[0]
    assert "differ by up to" in small and "float64" not in small, "memory is too small to look again"
    said = run_world(1, _merge_where, run, "slip")[0]
    assert "logits of the merged model differ by up to" in said and "from those of what was to be written" in said
    assert not list(run.root.glob("*merged*"))


@pytest.mark.slow
def test_a_second_merge_keeps_what_a_person_put_there(trained) -> None:
    run = trained("untied")
    merged(run)
    assert stat.S_IMODE((run.merged / "model.safetensors").stat().st_mode) == 0o644, "as the umask says"
    assert (run.merged / "README.md").read_text().startswith('---\nlibrary_name: "transformers"\n')
    for path in run.merged.iterdir():
        assert str(run.root.parent).encode() not in path.read_bytes(), path.name
    (run.merged / "notes").mkdir()
    for name in ("README.md", "LICENSE", "notes/a.txt"):
        (run.merged / name).write_text("by hand")
    for dtype in ("bfloat16", "float16"):
        assert merged(run, dtype=dtype)["dtype"] == dtype
        for name in ("README.md", "LICENSE", "notes/a.txt"):
            assert (run.merged / name).read_text() == "by hand"
    manifest = read_json(run.merged / "manifest.json") or {}
    assert not {"LICENSE", "notes/a.txt", "README.md"} & manifest["files"].keys()
    (run.merged / "README.md").unlink()
    merged(run)
    assert "| merged weights | float32 |" in (run.merged / "README.md").read_text()


def test_a_disk_that_is_too_small_is_said_before_anything_is_written(trained) -> None:
    run = trained("bfloat16", precision="mixed")
    said = run_world(1, _merge_where, run, "full", 100_000, InputError)[0]
    assert said.startswith(f"{run.merged}: the merged model takes ")
    assert "and its disk has 97.7 KiB left; free some, name a folder on another disk by --output, or" in said
    assert not list(run.root.glob("*merged*"))
    merged(run)
    said = run_world(1, _merge_where, run, "fills")[0]
    assert said.endswith("No space left on device; what was there before is as it was")
    assert result_fault(run.merged) is None and not list(run.root.glob(".merged*"))


def _answers(run: RunDirectory, part: str) -> tuple[str, int, int, set[str]]:
    """An answer, bytes of weights and of a token, and the classes of the model's modules."""
    chat = Chat(run, part, max_new_tokens=12, temperature=0.0)
    chat.load(QUESTION)
    kinds = {type(module).__name__ for module in chat._model.modules()}
    stacks = {"bare stack" for parameter in chat._model.parameters() if parameter.ndim == 3}
    return chat.answer(QUESTION).text, chat.weights, chat.token, kinds | stacks


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
        merged(run)
        assert run_world(1, _answers, run, "merged")[0][0] == answer
    assert run_world(1, _answers, run, "base")[0][0] != answer
    tokenizer = AutoTokenizer.from_pretrained(run.final)
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True, return_tensors="pt")
    tokens = loaded.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert answer == tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def _learn_to_stop(run: RunDirectory) -> list[int]:
    """Ids at which `chat` stops, where answers were trained to end in the token 5."""
    data = json.loads(run.data.read_text())
    run.data.write_text(json.dumps({**data, "ends": {"tokens": [{"id": 5, "text": "<|im_end|>", "count": 9}]}}))
    save(composed(run, execution()))
    chat = Chat(run, "trained", max_new_tokens=12, temperature=0.0)
    chat.load(QUESTION)
    asked: list[Any] = []
    generate = chat._model.generate
    chat._model.generate = lambda **given: asked.append(given["eos_token_id"]) or generate(**given)
    chat.answer(QUESTION)
    return asked[0]


def test_chat_and_a_merged_model_stop_where_answers_were_trained_to_end(trained) -> None:
    run = trained("untied")
    assert run_world(1, _learn_to_stop, run)[0] == [2, 5]
    merged(run)
    assert AutoModelForCausalLM.from_pretrained(run.merged).generation_config.eos_token_id == [2, 5]
    assert (read_json(run.merged / "manifest.json") or {})["stops"] == ["<|im_end|>"]


@pytest.mark.parametrize("model", ["wide", "wide qwen3_moe"])
def test_chat_loads_the_base_of_qlora_in_4_bits(model, trained, models) -> None:
    run = trained(model, method="qlora", lora=LORA | {"target_modules": ["q_proj", "o_proj"]})
    _, weights, _, kinds = run_world(1, _answers, run, "trained")[0]
    assert "Linear4bit" in kinds and "bare stack" not in kinds
    assert weights < sum(p.nbytes for p in AutoModelForCausalLM.from_pretrained(models[model]).parameters()) / 1.5


def _refusals(run: RunDirectory) -> list[str]:
    chat = Chat(run, "trained", max_new_tokens=100, temperature=0.0)
    chat.free = int((chat.weights + 50 * chat.token) / 0.95) + 20
    long = [{"role": "user", "content": "red " * 200}]
    return [said_by(DoesNotFitError, chat.load, one) for one in (QUESTION, long)]


def test_what_does_not_fit_is_refused_before_weights_are_loaded_with_the_length_that_fits(trained) -> None:
    short, long = run_world(1, _refusals, trained("untied"))[0]
    assert "39 tokens and an answer of 89 take 48.0 KiB of keys and values beside 2" in short
    assert short.endswith(" of memory are free: 50 tokens fit; lower --max-new-tokens, or add memory")
    assert long.startswith("the conversation has ")
    assert "tokens, and the model reads 128; write a shorter prompt" in long


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
