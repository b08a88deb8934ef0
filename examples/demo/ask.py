"""Asks a model, or an adapter on its base model, some questions, with nothing but transformers and peft.

python examples/demo/ask.py runs/demo-lora/final "What is the opposite of hot?"
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging


def load(folder: Path) -> tuple[PreTrainedModel | PeftModel, PreTrainedTokenizerBase]:
    """The model of a folder; where the folder holds an adapter, on the base model that it names."""
    adapter = folder / "adapter_config.json"
    if not adapter.is_file():
        return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    base, tokenizer = load(Path(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"]))
    return PeftModel.from_pretrained(base, folder), tokenizer


@torch.no_grad()
def answer(model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerBase, *, question: str) -> str:
    """The most likely answer, at most 40 tokens long."""
    chat = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    tokens = model.generate(**prompt, max_new_tokens=40, do_sample=False)
    return tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def main(folder: Path, questions: list[str]) -> None:
    """Prints one line per question."""
    # What peft and transformers deprecate between themselves is not for the reader of an answer.
    warnings.simplefilter("ignore", FutureWarning)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model, tokenizer = load(folder)
    model.eval()
    for question in questions:
        print(f"  {question}  ->  {answer(model, tokenizer, question=question)}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit('usage: ask.py MODEL_FOLDER "QUESTION" ["QUESTION" ...]')
    main(Path(sys.argv[1]), sys.argv[2:])
