"""One process beside TRL's own trainers of preferences: the same rows, weights and order."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.dist.cells import execution, train_cell
from tests.dist.compare import relative
from tests.dist.parity.test_preferences import rows_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # TRL's own
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("trl", "datasets")),
        reason="trl and datasets not installed: pip install '.[peers]'",
    ),
]

#: The same of both.
TRAIN: dict[str, Any] = {"max_steps": 10, "learning_rate": 5e-4, "lr_scheduler_type": "constant", "max_grad_norm": 1.0}
SIZE = 8

#: Objective and what is stated of it.
STATED: list[tuple[str, dict[str, Any]]] = [
    *(("dpo", {"loss_type": kind}) for kind in ("sigmoid", "hinge", "ipo", "nca_pair", "bco_pair", "sppo_hard")),
    *(("dpo", {"loss_type": kind}) for kind in ("apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm")),
    *(("dpo", {"loss_type": kind, "label_smoothing": 0.1}) for kind in ("exo_pair", "robust")),
    ("dpo", {"loss_type": ["sigmoid", "sft", "ipo"], "loss_weights": [0.5, 0.3, 0.01]}),
    ("kto", {}),
    ("kto", {"loss_type": "apo_zero_unpaired"}),
    ("kto", {"desirable_weight": 1.5, "undesirable_weight": 0.7}),
]


def logged_by_trl(model: str, rows: Path, objective: str, stated: dict[str, Any]) -> list[dict[str, float]]:
    """What TRL logs of each step."""
    import datasets
    import trl

    config, trainer = (trl.DPOConfig, trl.DPOTrainer) if objective == "dpo" else (trl.KTOConfig, trl.KTOTrainer)

    class InOrder(trainer):
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            return torch.utils.data.SequentialSampler(self.train_dataset)

    usual = {"logging_steps": 1, "max_length": 96, "gradient_checkpointing": False, "use_cpu": True, "bf16": False}
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "output_dir": str(rows.parent / "trl")}
    data = datasets.load_dataset("json", data_files=str(rows), split="train", cache_dir=str(rows.parent / "cache"))
    made = InOrder(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model),
        train_dataset=data,
        args=config(per_device_train_batch_size=SIZE, **usual, **quiet, **TRAIN, **stated),
    )
    made.train()
    return [entry for entry in made.state.log_history if "loss" in entry]


@pytest.mark.parametrize(("objective", "stated"), STATED)
def test_losses_norms_and_rewards_are_those_of_trl(objective, stated, make_job, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in rows_of(objective, count=24)))
    job = make_job(
        objective=objective,
        data={"path": str(rows), "max_length": 96, "shuffle": False},
        train={**TRAIN, "global_batch_size": SIZE, "warmup_steps": 0},
        **({"preference": stated} if stated else {}),
    )
    ours = train_cell(job, tmp_path / "run", execution(micro_batch_size=SIZE))[0].metrics
    theirs = logged_by_trl(job.model, rows, objective, stated)
    for name in ("loss", "grad_norm", "logps/chosen"):
        assert relative([one[name] for one in theirs], [one[name] for one in ours]) <= 1e-5, name
    for name in ("rewards/chosen", "rewards/rejected"):
        assert max(abs(one[name] - other[name]) for one, other in zip(theirs, ours, strict=True)) <= 1e-5, name
    assert abs(ours[-1]["loss"] - ours[0]["loss"]) > 1e-3, "what learns nothing shows nothing"
