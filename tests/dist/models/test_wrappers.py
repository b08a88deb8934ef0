"""Language models inside models of text and images: trained alike, and saved whole."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForImageTextToText

from shardwise.errors import ModelError
from shardwise.models.built.shape import shape_of
from shardwise.spec.layout.axes import Layout
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train.chatting import Chat
from shardwise.train.merging import merge
from tests.dist.cells import composed, digest, execution, prepare_cell, spread
from tests.dist.compare import relative
from tests.dist.reference import reference_losses
from tests.dist.saved.test_final import finish, loss_of
from tests.dist.tiny import tiny_config
from tests.dist.worlds import correct_routers, installed, run_world, said_by

TOYS = ("inside gemma3", "inside mistral3", "inside idefics3", "inside qwen3_vl")
LAYOUTS = {"fsdp": Layout(dp_shard=2), "pp": Layout(pp=2), "tp": Layout(tp=2)}
#: Of the last toy there is no plan of stages or slices.
CELLS = [(toy, ("full", "lora")[(row + at) % 2], way) for row, toy in enumerate(TOYS) for at, way in enumerate(LAYOUTS)]


@pytest.fixture(scope="session")
def hub_gemma3(models, tmp_path_factory) -> Path:
    """A toy as the hub has Gemma 3: its tower is called otherwise, and its weights are bfloat16."""
    folder = tmp_path_factory.mktemp("hub") / "gemma3"
    shutil.copytree(models["inside gemma3"], folder)
    stored = load_file(folder / "model.safetensors")
    assert "language_model.model.embed_tokens.weight" in stored
    renamed = {key.replace("vision_tower.", "vision_tower.vision_model."): value for key, value in stored.items()}
    save_file({key: value.bfloat16() for key, value in renamed.items()}, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    (folder / "preprocessor_config.json").write_text('{"image_processor_type": "Gemma3ImageProcessor"}')
    return folder


@pytest.mark.parametrize(("toy", "method", "layout"), CELLS[:-2])
def test_every_layout_trains_it_as_one_process_does(toy, method, layout, must_train_alike) -> None:
    chosen = spread(LAYOUTS[layout], micros=2 if LAYOUTS[layout].pp > 1 else 1)
    expected, _ = must_train_alike(chosen, toy, method=method, train={"max_steps": 4, "warmup_steps": 1})
    assert expected.weights and not any("vis" in name or "projector" in name for name in expected.frozen)


@pytest.mark.parametrize("toy", TOYS)
def test_one_process_trains_it_as_transformers_does(toy, make_job, single, tmp_path) -> None:
    job = make_job(toy, train={"max_steps": 6})
    expected = reference_losses(job, tmp_path, loader=AutoModelForImageTextToText, steps=6)
    assert relative(expected, single(job).series("loss")) <= 2e-5


def _stored(final: Path) -> dict[str, torch.Tensor]:
    """The tensors of the files that an index names."""
    files = json.loads((final / "model.safetensors.index.json").read_text())["weight_map"]
    found = {key: value for file in {*files.values()} for key, value in load_file(final / file).items()}
    assert found.keys() == files.keys()
    return found


@pytest.mark.parametrize("layout", ["fsdp", "pp"])
def test_final_is_the_whole_repository_and_its_tower_is_as_it_was(layout, hub_gemma3, make_job, tmp_path) -> None:
    chosen = spread(LAYOUTS[layout], micros=2 if layout == "pp" else 1)
    final, trained, _ = finish(make_job(hub_gemma3, train={"max_steps": 3}), tmp_path, chosen)
    before = load_file(hub_gemma3 / "model.safetensors")
    after = _stored(final)
    assert after.keys() == before.keys()
    frozen = {key for key in before if not key.startswith("language_model.")}
    assert len(frozen) > 15
    assert {key: digest(after[key]) for key in frozen} == {key: digest(before[key]) for key in frozen}
    assert any(digest(after[key]) != digest(before[key]) for key in before.keys() - frozen)
    loaded, info = AutoModelForImageTextToText.from_pretrained(final, output_loading_info=True)
    assert type(loaded).__name__ == "Gemma3ForConditionalGeneration"
    assert not info["missing_keys"] and not info["unexpected_keys"]
    assert loaded.model.vision_tower is not None and loaded.dtype == torch.bfloat16
    for name, weight in trained.weights.items():
        assert torch.equal(loaded.get_parameter(name), weight.bfloat16()), name
    assert (final / "preprocessor_config.json").is_file()
    assert 'model = AutoModelForImageTextToText.from_pretrained("' in (final / "README.md").read_text()


@pytest.mark.parametrize("copied", [[], ["norm"]])
def test_adapters_hang_on_the_whole_model(copied, hub_gemma3, make_job, tmp_path) -> None:
    """And copies of modules, whose names a tower has too."""
    train = {"max_steps": 3, "learning_rate": 2e-2, "warmup_steps": 0}
    job = make_job(hub_gemma3, method="lora", lora={"r": 4, "modules_to_save": copied}, train=train)
    final, _, loss = finish(job, tmp_path, spread(Layout(dp_shard=2)))
    names = load_file(final / "adapter_model.safetensors").keys()
    assert all(name.startswith("base_model.model.model.language_model.") for name in names)
    assert any(".q_norm.weight" in name for name in names) == bool(copied)
    whole: Any = AutoModelForImageTextToText.from_pretrained(hub_gemma3, dtype=torch.float32)
    plain = loss_of(whole.eval(), final)
    adapted = PeftModel.from_pretrained(whole, str(final)).eval()
    assert not any(p.requires_grad or ".lora_" in name for name, p in adapted.named_parameters() if "vision" in name)
    assert loss_of(adapted, final) == pytest.approx(loss, rel=1e-5)
    assert abs(loss - plain) > 1e-3 * plain


def _merge_and_ask(run: RunDirectory) -> tuple[str, str]:
    """Answers of base and adapter, and of what they are merged into."""
    question = [{"role": "user", "content": "red green"}]
    merge(str(run.root), str(run.merged), None, False)
    chats = [Chat(run, part, max_new_tokens=8, temperature=0.0) for part in ("trained", "merged")]
    for chat in chats:
        chat.load(question)
    first, second = (chat.answer(question, aloud=False).text for chat in chats)
    return first, second


@pytest.mark.parametrize(("method", "toy"), [("lora", "inside gemma3"), ("qlora", "wide inside mistral3")])
def test_adapters_are_merged_into_the_whole_and_answer(method, toy, trained, models) -> None:
    run = trained(toy, method=method, lora={"r": 4, "lora_alpha": 8})
    answers = run_world(1, _merge_and_ask, run)[0]
    assert method == "qlora" or answers[0] == answers[1] != ""
    before, after = (load_file(folder / "model.safetensors") for folder in (models[toy], run.merged))
    assert after.keys() == before.keys()
    same = {key for key, value in before.items() if torch.equal(value, after[key])}
    assert {key for key in before if "vision" in key or "projector" in key} <= same
    assert not any(key.endswith("q_proj.weight") and "language_model" in key for key in same)
    kept = (read_json(run.final / "quantization_config.json") or {}).get("llm_int8_skip_modules")
    assert kept == (["lm_head", "model.vision_tower", "model.multi_modal_projector"] if method == "qlora" else None)


def test_a_folder_without_its_tower_is_refused_before_it_is_loaded(hub_gemma3, make_job, tmp_path) -> None:
    folder = Path(shutil.copytree(hub_gemma3, tmp_path / "lacking"))
    stored = load_file(folder / "model.safetensors")
    del stored["multi_modal_projector.mm_input_projection_weight"]
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    said = run_world(1, said_by, ModelError, composed, prepare_cell(make_job(folder), tmp_path / "run"), execution())[0]
    assert "the weight model.multi_modal_projector.mm_input_projection_weight is missing" in said
    assert shape_of(str(folder)).names.blocks == "model.language_model.layers"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of names that PEFT does not find in a part of the model
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("family", installed(("kimi_k25",)))
def test_a_tower_whose_weights_transformers_makes_anew_is_copied(family, method, make_job, models, tmp_path) -> None:
    """Its keys are split in loading; PEFT knows stacked experts by the whole model's family."""
    folder = Path(shutil.copytree(models["inside gemma3"], tmp_path / "model"))
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(tiny_config(family), dtype=torch.float32)
    correct_routers(model)
    model.save_pretrained(folder)
    job = make_job(folder, method=method, train={"max_steps": 2, "learning_rate": 0.01, "warmup_steps": 0})
    final, _, loss = finish(job, tmp_path / "run", spread(Layout(dp_shard=2)))
    if method == "full":
        before, after = load_file(folder / "model.safetensors"), _stored(final)
        assert after.keys() == before.keys() and any("wqkv" in key for key in before)
        assert all(torch.equal(before[key], after[key]) for key in before if "tower" in key or "projector" in key)
    loaded: Any = AutoModelForImageTextToText.from_pretrained(final if method == "full" else folder).eval()
    adapted = loaded if method == "full" else PeftModel.from_pretrained(loaded, str(final)).eval()
    assert loss_of(adapted, final) == pytest.approx(loss, rel=1e-5)
