#!/usr/bin/env bash
# Trainer saves a schedule-free model's training weights, unless it has evaluated right before.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 accelerate==1.15.0 schedulefree==1.4.1
cd "$folder"
env -u PYTHONPATH HF_HOME="$folder/home" "$folder/venv/bin/python" - <<'PYTHON'
"""transformers 5.23.0 with `optim="schedule_free_adamw"` (schedulefree 1.4.1): such an optimizer trains at other weights than the model
it makes, an average, and `optimizer.eval()` switches to it. Trainer does so before it evaluates, and not before it saves: a run
without evaluations saves the weights it trained at, in checkpoints and by `save_model`. The same run with an evaluation at
the step of saving saves the model.
"""

import torch
import transformers
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

transformers.logging.set_verbosity_error()
sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_hidden_layers": 1}
texts = [[(3 * row + 5 * place) % 60 for place in range(8)] for row in range(8)]
rows = [{"input_ids": text, "labels": text} for text in texts]


def trained(evaluates):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**sizes))
    arguments = transformers.TrainingArguments(
        output_dir=f"out-{evaluates}",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        max_steps=10,
        save_steps=10,
        optim="schedule_free_adamw",
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        eval_strategy="steps" if evaluates else "no",
        eval_steps=10,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    saved = load_file(f"out-{evaluates}/checkpoint-10/model.safetensors")
    trainer.optimizer.optimizer.eval()
    own = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    ids = torch.tensor(texts)
    with torch.no_grad():
        loss = model.eval()(ids, labels=ids).loss.item()
        model.load_state_dict(saved, strict=False)
        return loss, model(ids, labels=ids).loss.item(), max((saved[name] - weight).abs().max().item() for name, weight in own.items())


print(f"transformers {transformers.__version__}, losses of the model that was trained and of the one that was saved:")
found = {evaluates: trained(evaluates) for evaluates in (True, False)}
for evaluates, (own, saved, apart) in found.items():
    print(f"  {'evaluates before it saves' if evaluates else 'no evaluation'}: {own:.3f} and {saved:.3f}; weights apart by {apart:.2g}")
assert found[True][0] == found[False][0] and found[True][2] == 0 < 1e-3 < found[False][2] and abs(found[False][1] - found[False][0]) > 0.1
PYTHON
