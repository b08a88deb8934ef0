"""`shardwise.Trainer` honours what the Trainer of transformers does, or refuses it by name."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import shardwise
from shardwise.errors import UnsupportedError
from shardwise.train.own_loop import hugging_face as honoured
from tests.dist.compare import TOLERANCE, relative
from tests.dist.loops.test_own_loop import EPSILON, lora, model_of, must_be_saved_the_same
from tests.dist.worlds import run_world, said_by, toy_model

#: As people write them.
LAYOUTS: dict[str, Any] = {"fsdp": "fsdp", "tp": {"tp": 2}, "pp": {"pp": 2}}
FIELDS = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments)}

#: As transformers calls it from 5.23 on.
CHECKPOINTING = "activation_checkpointing" if "activation_checkpointing" in FIELDS else "gradient_checkpointing"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_model(tmp_path_factory.mktemp("trainer") / "model", num_hidden_layers=4)


def rows(*, count: int = 24, length: int = 10) -> list[dict[str, list[int]]]:
    ids = torch.randint(1, 97, (count, length), generator=torch.Generator().manual_seed(3)).tolist()
    return [{"input_ids": one, "labels": one} for one in ids]


def arguments(out: Path, **changes: Any) -> Any:
    settings: dict[str, Any] = {"per_device_train_batch_size": 8, "num_train_epochs": 1, "learning_rate": 1e-3}
    settings |= {"adam_epsilon": EPSILON, "save_strategy": "no", "use_cpu": True}
    settings |= {"logging_steps": 1, "report_to": "none", "disable_tqdm": True}
    return transformers.TrainingArguments(str(out), **(settings | changes))


def trained(folder: Path, out: Path, layout: str | None, adapters: Any, changes: Any, given: Any) -> Any:
    """Losses and norms, and what is decayed; the result lies in `out`."""
    model, share = model_of(folder, adapters), 1 if layout in (None, "tp", "pp") else 2
    args = arguments(out, per_device_train_batch_size=8 // share, **changes)
    kind, where = (shardwise.Trainer, {"layout": LAYOUTS[layout]}) if layout else (transformers.Trainer, {})
    trainer = kind(model, args, train_dataset=rows(), **where, **given)
    trainer.train()
    trainer.save_model(str(out))
    history = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    wholes = {id(p): name for name, p in trainer.model.named_parameters()}
    decayed = [wholes[id(p)].removeprefix("base_model.model.") for p in trainer.optimizer.param_groups[0]["params"]]
    return [entry["loss"] for entry in history], [entry["grad_norm"] for entry in history], sorted(decayed)


SCHEDULED = {"warmup_steps": 1, "lr_scheduler_type": "cosine", "train_sampling_strategy": "sequential"}
BY_CLASS = {"optimizer_cls_and_kwargs": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})}


@pytest.mark.parametrize(
    ("layout", "adapters", "changes", "given"),
    [
        pytest.param("fsdp", None, {"weight_decay": 0.5, "max_grad_norm": 0.1}, {}, id="clipped"),
        pytest.param("fsdp", lora(use_dora=True), {"weight_decay": 0.5}, {}, id="DoRA"),
        pytest.param("tp", None, {CHECKPOINTING: True, "max_grad_norm": 0.0}, {}, id="plain"),
        pytest.param("pp", None, SCHEDULED, BY_CLASS, id="optimizer by class"),
    ],
)
def test_what_is_honoured_is_as_in_transformers_trainer(folder, tmp_path, layout, adapters, changes, given) -> None:
    ((losses, norms, decayed),) = run_world(1, trained, folder, tmp_path / "plain", None, adapters, changes, given)
    for found in run_world(2, trained, folder, tmp_path / "spread", layout, adapters, changes, given):
        assert max(relative(losses, found[0]), relative(norms, found[1])) <= TOLERANCE
        assert decayed == found[2]
    must_be_saved_the_same(folder, tmp_path, adapters)
    for file in ("config.json", "generation_config.json") if adapters is None else ():
        wanted, got = (json.loads((tmp_path / name / file).read_text()) for name in ("plain", "spread"))
        older = {"rope_theta": wanted["rope_parameters"]["rope_theta"]} if file == "config.json" else {}
        assert wanted | older == got


def refusal(args: Any, given: dict[str, Any] | None = None, kind: type = shardwise.Trainer) -> str:
    return said_by(UnsupportedError, honoured.refuse, args, given or {}, kind=kind, ours=shardwise.Trainer)


def test_every_training_argument_is_honoured_or_refused_by_name(tmp_path) -> None:
    for name, field in FIELDS.items():
        args = arguments(tmp_path)
        wrong = {"optim": "lomo", "train_sampling_strategy": "batch_rebalance"}.get(name, "another")
        setattr(args, name, not field.default if isinstance(field.default, bool) else wrong)
        if name in honoured.ARGUMENTS and name not in honoured.VALUES:
            honoured.refuse(args, {}, kind=shardwise.Trainer, ours=shardwise.Trainer)
        else:
            assert f"does not honour {name}" in refusal(args), name
    same = {"label_names": ["labels"], f"{CHECKPOINTING}_kwargs": {"use_reentrant": False}, CHECKPOINTING: True}
    honoured.refuse(arguments(tmp_path, **same), {}, kind=shardwise.Trainer, ours=shardwise.Trainer)
    assert honoured.VALUES.keys() - FIELDS.keys() <= {"activation_checkpointing_kwargs"}


def test_an_argument_that_is_new_in_transformers_is_refused_until_it_is_listed(tmp_path) -> None:
    @dataclasses.dataclass
    class Later(transformers.TrainingArguments):
        sharpness: float = 0.0

    usual: dict[str, Any] = {"save_strategy": "no", "use_cpu": True}
    honoured.refuse(Later(str(tmp_path), **usual), {}, kind=shardwise.Trainer, ours=shardwise.Trainer)
    assert "does not honour sharpness: nothing" in refusal(Later(str(tmp_path), sharpness=0.5, **usual))


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"save_strategy": "steps"}, "save_strategy (write save_strategy='no' and call save_model)"),
    ({"eval_strategy": "steps"}, "eval_strategy (write eval_strategy='no', and call parallelized"),
    ({"bf16": True}, "bf16 (write precision='mixed', or load the model in bfloat16)"),
    ({"optim": "adamw_bnb_8bit"}, "optim (these follow modules; use adamw_torch"),
    ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy (write random or group_by_length)"),
    ({f"{CHECKPOINTING}_kwargs": {"every_n_layers": 2}}, f"{CHECKPOINTING}_kwargs (leave it out)"),
    ({"average_tokens_across_devices": False, "torch_compile": True}, "across_devices, torch_compile"),
    (
        {"dataloader_drop_last": True, "gradient_accumulation_steps": 2},
        "drop_last (with gradient_accumulation_steps it",
    ),
    ({"accelerator_config": {"split_batches": True}}, "accelerator_config (the loader gives every rank"),
]


def test_a_training_argument_without_effect_is_refused_with_what_to_write(tmp_path) -> None:
    for changes, said in REFUSED:
        assert said in refusal(arguments(tmp_path, **changes))


class Sharper(shardwise.Trainer):
    """Somebody's own."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, *_: Any, **__: Any) -> Any: ...

    def log(self, *given: Any, **named: Any) -> None:
        super().log(*given, **named)

    def helper(self) -> None: ...


def test_constructor_arguments_and_methods_without_effect_are_refused_by_name(tmp_path) -> None:
    args, made = arguments(tmp_path), torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    given: dict[str, Any] = {"optimizers": (made, None), "eval_dataset": rows()}
    given |= dict.fromkeys(("compute_loss_func", "model_init", "preprocess_logits_for_metrics"), print)
    for name, value in given.items():
        assert f"does not honour {name}" in refusal(args, {name: value, "callbacks": [], "train_dataset": rows()})
    assert "give optimizer_cls_and_kwargs, or override create_optimizer" in refusal(args, given)
    assert "does not honour compute_loss (the loss is the mean over trained tokens" in refusal(args, kind=Sharper)
    assert "loss_is_scaled_for_ga: nothing would come of it" in refusal(args, kind=Sharper)
    assert not any(name in refusal(args, kind=Sharper) for name in ("helper", " log"))


def _refused(folder: Path, out: Path) -> dict[str, str]:
    """In the order in which people meet it."""
    given = model_of(folder, None)
    before = [p.detach().clone() for p in given.parameters()]
    options: dict[str, Any] = {"layout": "single", "train_dataset": rows()}
    made = {"optimizers": (torch.optim.AdamW(given.parameters()), None)}
    said = {
        "built": said_by(UnsupportedError, shardwise.Trainer, given, arguments(out), **made, **options),
        "subclass": said_by(UnsupportedError, Sharper, given, arguments(out), **options),
    }
    assert all(torch.equal(*pair) for pair in zip(before, given.parameters(), strict=True)), "the model was taken"
    trainer = shardwise.Trainer(given, arguments(out), **options)
    said["resume"] = said_by(UnsupportedError, trainer.train, resume_from_checkpoint=True)
    said["evaluate"] = said_by(UnsupportedError, trainer.evaluate)
    said["predict"] = said_by(UnsupportedError, trainer.predict, rows())
    said["state"] = said_by(UnsupportedError, trainer.model.state_dict)
    said["generate"] = said_by(AttributeError, getattr, trainer.model, "generate")
    trainer.compute_loss = print
    said["patched"] = said_by(UnsupportedError, trainer.train)
    del trainer.compute_loss
    trainer.compute_loss_func = print
    said["set"] = said_by(UnsupportedError, trainer.train)
    trainer.model.save_pretrained(out)
    assert (out / "model.safetensors").is_file()
    return said


def test_a_trainer_that_would_drop_something_does_not_begin(folder, tmp_path) -> None:
    (said,) = run_world(1, _refused, folder, tmp_path)
    expected = {
        "built": "does not honour optimizers (they were made before the model is spread",
        "subclass": "does not honour compute_loss (",
        "resume": "does not honour resume_from_checkpoint (use `shardwise train`",
        "evaluate": "trainer.parallelized.evaluate(batch)",
        "predict": "trainer.parallelized.evaluate(batch)",
        "state": "save_pretrained(folder), called by every rank",
        "generate": "a parallelized model has no generate: ranks hold parts of weights",
        "patched": "does not honour compute_loss (",
        "set": "does not honour compute_loss_func (",
    }
    assert said.keys() == expected.keys()
    assert {name: one for name, one in said.items() if expected[name] not in one} == {}


def _optimizer_of_wholes(folder: Path, out: Path) -> tuple[str, int]:
    args = arguments(out, optim="adafactor")
    trainer = shardwise.Trainer(model_of(folder, None), args, layout="fsdp", train_dataset=rows())
    return said_by(UnsupportedError, trainer.train), trainer.state.global_step


def test_optim_adafactor_is_refused_where_weights_are_cut_before_the_first_update(folder, tmp_path) -> None:
    for said, steps in run_world(2, _optimizer_of_wholes, folder, tmp_path):
        assert said.startswith("Adafactor does not step element by element")
        assert steps == 0
