"""`shardwise.parallelize` beside a plain loop of one process with the forward of transformers."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, LlamaForCausalLM

import shardwise
from shardwise.errors import DataError, InputError, UnsupportedError
from shardwise.spec.layout.axes import Layout
from tests.dist import cells
from tests.dist.compare import TOLERANCE, apart, relative
from tests.dist.conftest import TOYS
from tests.dist.worlds import run_world, said_by, toy_model

STEPS = 6

#: Of AdamW, a hundredth of the usual gradient: less amplifies rounding of small gradients.
EPSILON = 1e-5

LAYOUTS: dict[str, Layout] = cells.LAYOUTS | {"tp x pp": Layout(tp=2, pp=2), "ddp x pp": Layout(dp_replicate=2, pp=2)}
LAYOUTS |= {"fsdp x cp": Layout(dp_shard=2, cp=2), "cp x pp": Layout(cp=2, pp=2)}

#: Of a mixture of experts.
ROUTED = {"single": Layout(), "ep": Layout(dp_replicate=2, ep=2), "fsdp x ep": Layout(dp_shard=2, ep=2)}
ROUTED |= {name: LAYOUTS[name] for name in ("ddp", "zero1", "fsdp", "mp", "pp")}

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=5e-4, eps=EPSILON),
}


#: Losses and norms of each step.
Figures = tuple[list[float], list[float]]


def batches(*, rows: int = 6, length: int = 12) -> list[dict[str, torch.Tensor]]:
    """Ragged rows as collators pad them on the right, partly trained; rows may not divide."""
    generator = torch.Generator().manual_seed(1)
    made: list[dict[str, torch.Tensor]] = []
    for step in range(STEPS):
        ids = torch.randint(1, 97, (rows - step % 2, length - step % 3), generator=generator)
        lengths = torch.randint(4, ids.shape[1] + 1, (len(ids), 1), generator=generator)
        mask = (torch.arange(ids.shape[1]) < lengths).long()
        labels = ids.masked_fill((mask == 0) | (torch.arange(ids.shape[1]) < 2), -100)
        made.append({"input_ids": ids * mask, "attention_mask": mask, "labels": labels})
    return made


def lora(**changes: Any) -> LoraConfig:
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    return LoraConfig(**(settings | changes))


def model_of(folder: Path, adapters: LoraConfig | None = None, layout: Any = None, **options: Any) -> Any:
    """Of one process, or parallelized."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    if adapters is not None:
        torch.manual_seed(0)
        model = get_peft_model(model, copy.deepcopy(adapters))
    return model if layout is None else shardwise.parallelize(model, layout, **options)


def plain(folder: Path, adapters: LoraConfig | None, optimizer: str, saved: Path) -> Figures:
    """Nothing of ours."""
    model = model_of(folder, adapters)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    stepped, losses, norms = OPTIMIZERS[optimizer](trained), [], []
    for batch in batches():
        loss = model(**batch).loss
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, 1.0).item())
        stepped.step()
        stepped.zero_grad()
        losses.append(loss.item())
    model.save_pretrained(saved)
    return losses, norms


def spread(folder: Path, adapters: Any, optimizer: str, saved: Path, layout: Any, options: Any) -> Figures:
    """The same loop over ranks."""
    model = model_of(folder, adapters, layout, **options)
    stepped, losses, norms = OPTIMIZERS[optimizer](model.parameters()), [], []
    for batch in batches():
        losses.append(model.step(batch).item())
        norms.append(model.clip_grad_norm_(1.0).item())
        stepped.step()
        stepped.zero_grad()
    model.save_pretrained(saved)
    return losses, norms


def must_train_the_same(tmp_path: Path, layout, adapters, optimizer: str, *, folder: Path, **options: Any) -> None:
    expected = run_world(1, plain, folder, adapters, optimizer, tmp_path / "plain")[0]
    found = run_world(layout.world_size, spread, folder, adapters, optimizer, tmp_path / "spread", layout, options)
    for rank in found:
        assert rank == found[0], "ranks report different figures"
    for one, other in zip(expected, found[0], strict=True):
        assert relative(one, other) <= TOLERANCE
    must_be_saved_the_same(folder, tmp_path, adapters)


def must_be_saved_the_same(folder: Path, saved: Path, adapters: Any = None, *, inside: str = "") -> None:
    """What lies in `plain` and in `spread`, as `from_pretrained` reads it."""

    def loaded(path: Path) -> dict[str, torch.Tensor]:
        base = AutoModelForCausalLM.from_pretrained(path if adapters is None else folder)
        model: Any = base if adapters is None else PeftModel.from_pretrained(base, path)
        return {name: parameter.detach() for name, parameter in model.named_parameters()}

    wanted, got = (loaded(saved / name / inside) for name in ("plain", "spread"))
    assert wanted.keys() == got.keys()
    for name, weight in wanted.items():
        assert apart(weight, got[name]) <= TOLERANCE, (inside, name)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("own-loop")
    return {
        "tied": toy_model(root / "tied", tied=True, num_hidden_layers=4),
        "untied": toy_model(root / "untied", num_hidden_layers=4),
        "experts": toy_model(root / "experts", **TOYS["balanced mixtral"]),
    }


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loop_of_ones_own_trains_the_same(folders, tmp_path, layout, method) -> None:
    adapters, toy = (None, "tied") if method == "full" else (lora(), "untied")
    for optimizer in OPTIMIZERS:
        must_train_the_same(tmp_path / optimizer, LAYOUTS[layout], adapters, optimizer, folder=folders[toy])


@pytest.mark.parametrize("adapters", [None, lora(target_modules=["q_proj", "v_proj"])], ids=["full", "lora"])
@pytest.mark.parametrize("layout", ROUTED)
def test_experts_and_the_loss_of_their_routers_train_the_same(folders, tmp_path, layout, adapters) -> None:
    must_train_the_same(tmp_path, ROUTED[layout], adapters, "sgd", folder=folders["experts"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "adapters", "options"),
    [
        ("fsdp", lora(use_dora=True, modules_to_save=["lm_head"]), {"micro_batch_size": 1}),
        ("fsdp", lora(target_modules=["q_proj", "v_proj"], use_rslora=True), {"gradient_checkpointing": "full"}),
        ("pp", None, {"micro_batch_size": 1}),
    ],
)
def test_options_and_variants_train_the_same(folders, tmp_path, layout, adapters, options) -> None:
    must_train_the_same(tmp_path, LAYOUTS[layout], adapters, "sgd", folder=folders["untied"], **options)


def _unseeded(folder: Path) -> float:
    """Adapters that PEFT draws in each process, without a seed."""
    torch.manual_seed(torch.distributed.get_rank() if torch.distributed.is_initialized() else int(os.environ["RANK"]))
    made = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), lora(init_lora_weights=False))
    return shardwise.parallelize(made, "ddp").step(batches()[0]).item()


def test_where_ranks_draw_other_adapters_those_of_rank_0_are_trained(folders) -> None:
    losses = run_world(2, _unseeded, folders["untied"])
    alone = run_world(1, _unseeded, folders["untied"])
    assert losses[0] == losses[1] == pytest.approx(alone[0], rel=TOLERANCE)


#: What a step is told, or does not take, and how that is refused; as people meet it.
REFUSED: dict[str, str] = {
    "no labels": "has no tensor labels",
    "other": "holds position_ids, which is not trained with",
    "left": "padding_side = 'right'",
    "padding": "write -100 there",
    "nothing": "trains no token",
    "shapes": "expected one shape [rows, length]",
    "strange": "input_ids hold 97, and the model's vocabulary is of 0 to 96",
    "strange label": "labels hold -1, and the model's vocabulary is of 0 to 96",
    "ranks": "rank 0 and rank 1 were given different batches",
    "size": "2 processes were started; the layout pp x tp needs 4",
    "frozen": "lm_head.weight was frozen after parallelize, which has no effect; leave it out",
    "hooked": "lm_head.weight has a hook, which would not run; change p.grad between step(batch)",
    "again": "call optimizer.zero_grad() before the next step, which sets them to None",
    "backward": "step(batch) was forward and backward of this loss; leave backward out",
    "call": "a parallelized model has no forward: step(batch) is forward and backward",
    "copy": "a parallelized model has no copy: average weights over steps by copies",
    "state": "a parallelized model has no state_dict: ranks hold parts of weights",
    "modules": "change the model before parallelize",
}


def _sentences(folder: Path) -> dict[str, str]:
    """On two ranks."""
    model = model_of(folder, layout="fsdp")
    good = batches()[0]
    ids, labels = good["input_ids"], good["labels"]
    wrong: dict[str, dict[str, torch.Tensor]] = {
        "no labels": {"input_ids": ids},
        "other": {**good, "position_ids": ids},
        "left": {**good, "attention_mask": good["attention_mask"].flip(1)},
        "padding": {**good, "labels": ids},
        "nothing": {**good, "labels": torch.full_like(labels, -100)},
        "shapes": {**good, "labels": labels[:, 1:]},
        "strange": {**good, "input_ids": ids.masked_fill(ids == ids.max(), 97)},
        "strange label": {**good, "labels": labels.masked_fill(labels == labels.max(), -1)},
        "ranks": {**good, "input_ids": ids * int(os.environ["RANK"])},
    }
    said = {name: said_by(DataError, model.step, batch) for name, batch in wrong.items()}
    said["size"] = said_by(InputError, shardwise.parallelize, model_of(folder, None), {"tp": 2, "pp": 2})
    last = [*model.parameters()][-1].requires_grad_(False)
    said["frozen"] = said_by(UnsupportedError, model.step, good)
    hook = last.requires_grad_().register_hook(torch.zeros_like)
    said["hooked"] = said_by(UnsupportedError, model.step, good)
    hook.remove()
    loss = model.step(good)
    said["again"] = said_by(InputError, model.step, good)
    said["backward"] = said_by(UnsupportedError, loss.backward)
    said["call"] = said_by(UnsupportedError, model, **good)
    said["copy"] = said_by(UnsupportedError, torch.optim.swa_utils.AveragedModel, model)
    said["state"] = said_by(AttributeError, getattr, model, "state_dict")
    return {**said, "modules": said_by(AttributeError, getattr, model, "named_modules")}


def test_what_a_step_does_not_take_is_refused_in_a_sentence(folders) -> None:
    said, _ = run_world(2, _sentences, folders["untied"])
    assert said.keys() == REFUSED.keys()
    assert {name: one for name, one in said.items() if REFUSED[name] not in one} == {}


def test_a_model_that_is_not_trained_is_refused_in_a_sentence(folders, tmp_path) -> None:
    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(folders["untied"])

    def refused(layout: Any = "single", changed: Any = None, **options: Any) -> str:
        return said_by(InputError, shardwise.parallelize, base() if changed is None else changed, layout, **options)

    assert "`shardwise plan`" in refused("auto")
    assert "fsdpp" in refused("fsdpp")
    other = get_peft_model(base(), IA3Config(task_type="CAUSAL_LM"))
    assert "of PEFT's kinds LORA is trained" in refused(changed=other)
    embedding = get_peft_model(base(), lora(target_modules=["embed_tokens"]))
    assert "the adapter trains model.embed_tokens.lora_embedding_A" in refused(changed=embedding)
    wrapped = get_peft_model(base(), lora(target_modules=["q_proj"], target_parameters=["up_proj.weight"]))
    assert "the adapter is of stacked experts or routers; parallelize trains those of" in refused(changed=wrapped)
    repeated = get_peft_model(base(), lora(target_modules=["q_proj"], layer_replication=[[0, 3], [1, 3]]))
    assert "the adapter replicates layers (layer_replication), which then share" in refused(changed=repeated)
    for switch in ("merge_adapter", "disable_adapter_layers"):
        getattr(off := get_peft_model(base(), lora()), switch)()
        assert "merged into the model, or off; call unmerge_adapter() and enable" in refused(changed=off)
    (resized := base()).resize_token_embeddings(105)
    said = refused(changed=get_peft_model(resized, lora(modules_to_save=["lm_head"])))
    assert said.startswith(f"the vocabulary has 105 tokens, and that of {folders['untied']} 97: files of an adapter")
    assert "meta device" in refused(changed=base().to("meta"))
    frozen = base()
    frozen.lm_head.weight.requires_grad_(False)
    assert "lm_head.weight is frozen" in refused(changed=frozen)
    (hooked := base()).lm_head.weight.register_hook(torch.zeros_like)
    assert "lm_head.weight has a hook, which would not run" in refused(changed=hooked)
    checkpointing = base()
    getattr(checkpointing, "activation_checkpointing_enable", checkpointing.gradient_checkpointing_enable)()
    assert "gradient_checkpointing='full'" in refused(changed=checkpointing)
    assert "say which precision" in refused(changed=base().half())
    for other in (torch.nn.Linear(2, 2), AutoModelForSequenceClassification.from_pretrained(folders["untied"])):
        assert f"{type(other).__name__} is not a causal language model" in refused(changed=other)
    assert "precision fp16 scales the loss, which a loop of one's own does not" in refused("single", precision="fp16")
    noisy = AutoModelForCausalLM.from_pretrained(folders["experts"], router_jitter_noise=0.1)
    with pytest.warns(UserWarning, match="mixtral routes without noise"):
        refused(changed=noisy, precision="fp16")
    shorter = base()
    shorter.model.layers = shorter.model.layers[:2]
    assert refused(changed=shorter) == "the model has 2 blocks, and its config 4; set config.num_hidden_layers"
    capped = AutoModelForCausalLM.from_pretrained(toy_model(tmp_path, family="gemma2", tied=True))
    assert "gemma2" in refused(Layout(cp=2), changed=capped)


OWN = type("Own", (LlamaForCausalLM,), {"forward": print})
#: What people change of a model that is computed around its backbone -> what is said of it.
CHANGED: dict[str, Callable[[Any], Any]] = {
    "LlamaForCausalLM has a forward of its own": lambda model: vars(model).update(forward=print),
    "Own has a forward of its own": lambda model: setattr(model, "__class__", OWN),
    "the model has a loss_function of its own": lambda model: setattr(model, "loss_function", print),
    "the model has a hook": lambda model: model.register_forward_hook(print),
    "its backbone has a hook": lambda model: model.model.register_full_backward_hook(print),
    "its head has a hook": lambda model: model.lm_head.register_forward_pre_hook(print),
    "the forward of lm_head was replaced": lambda model: vars(model.lm_head).update(forward=print),
    "the forward of model.norm was replaced": lambda model: vars(model.model.norm).update(forward=lambda x: x),
    "PEFT's model has a hook": lambda model: get_peft_model(model, lora()),
}


def test_what_a_model_does_around_its_backbone_is_refused_and_not_left_out(folders) -> None:
    for what, change in CHANGED.items():
        model = AutoModelForCausalLM.from_pretrained(folders["untied"])
        if isinstance(made := change(model), PeftModel):
            (model := made).register_forward_hook(print)
        said = said_by(UnsupportedError, shardwise.parallelize, model, "single")
        assert said.startswith(f"{what}, which step would not run as the model's forward does: it makes hidden")


def test_a_name_that_the_package_lacks_is_an_ordinary_error() -> None:
    assert said_by(AttributeError, getattr, shardwise, "spread") == "module 'shardwise' has no attribute 'spread'"
