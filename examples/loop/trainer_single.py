"""The Trainer of transformers on one GPU: python trainer_single.py MODEL ROWS.jsonl OUT"""

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

name, rows, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
texts = [json.loads(row)["text"] for row in Path(rows).read_text().splitlines()]
samples = [tokenizer(text, truncation=True, max_length=512) for text in texts]
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)
arguments = transformers.TrainingArguments(
    out,
    per_device_train_batch_size=8,
    num_train_epochs=1,
    learning_rate=1e-3,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    disable_tqdm=True,
    use_cpu=not torch.cuda.is_available(),
)
trainer = transformers.Trainer(
    model,
    arguments,
    train_dataset=samples,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model(out)
