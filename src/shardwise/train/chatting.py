"""Answers with what a run trained, on the user's stdin and stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from shardwise.catalog.processors import available_memory
from shardwise.errors import DoesNotFitError
from shardwise.models.built.shape import shape_of
from shardwise.models.load import build_on_meta, find_model_folder, read_config
from shardwise.models.nf4 import quantise_linear_layers
from shardwise.spec.job.file import read_job
from shardwise.spec.plan.generation import USABLE, cache_elements
from shardwise.spec.run import RunDirectory, revision_of
from shardwise.train.result import base_of, run_program
from shardwise.units import format_gib

Messages = list[dict[str, str]]


class Chat:
    """Answers with what a run `trained`, an adapter on its base or a model, with its `base`, or with what was `merged`.
    In bytes: `weights`; `token`, the keys and values of one token; `free`, memory of all GPUs, or of the machine."""

    def __init__(self, run: RunDirectory, part: str, *, max_new_tokens: int, temperature: float) -> None:
        from transformers import AutoTokenizer

        has_adapter = part != "merged" and (run.final / "adapter_config.json").is_file()
        self._most, self._temperature = max_new_tokens, temperature
        self._adapter = run.final if has_adapter and part == "trained" else None
        self._folder, self._quantisation = run.merged if part == "merged" else run.final, None
        if has_adapter:
            self._folder, self._quantisation = base_of(run)
        elif part == "base":
            name = read_job(run.resolved).model
            self._folder = find_model_folder(name, revision=revision_of(run, name))
        self._tokenizer: Any = AutoTokenizer.from_pretrained(run.final)
        config, shape = read_config(self._folder), shape_of(str(self._folder))
        element = (config.dtype or torch.float32).itemsize
        model = build_on_meta(config, attn_implementation="eager").requires_grad_(False)
        if self._quantisation is not None:
            quantise_linear_layers(model, dtype=self._quantisation.bnb_4bit_compute_dtype)
        self.weights = sum(p.numel() * (1 if p.dtype == torch.uint8 else element) for p in model.parameters())
        self.weights += (run.final / "adapter_model.safetensors").stat().st_size if self._adapter else 0
        self.token = cache_elements(shape, 1) * element
        self._gpus = {index: torch.cuda.mem_get_info(index)[0] for index in range(torch.cuda.device_count())}
        self.free = sum(self._gpus.values()) or available_memory()
        self._positions = shape.max_position_embeddings or sys.maxsize

    def room(self, messages: Messages) -> tuple[dict[str, torch.Tensor], int]:
        """The prompt as token ids and mask [1, length], and how many tokens the answer may have. Raises
        DoesNotFitError: memory, or the model's positions, hold fewer than were asked for."""
        if self._tokenizer.chat_template is None:  # the text is continued
            found = self._tokenizer("\n".join(one["content"] for one in messages), return_tensors="pt")
        else:
            options: dict[str, Any] = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}
            found = self._tokenizer.apply_chat_template(messages, **options)
        length = found["input_ids"].shape[1]
        new = min(self._most, self._positions - length)
        fits = max(0, int(USABLE * self.free - self.weights) // self.token)
        if new < 1:
            reads = f"the conversation has {length:,} tokens, and the model reads {self._positions:,}"
            raise DoesNotFitError(f"{reads}; write a shorter prompt, or begin a new conversation")
        if length + new > fits:
            takes = [format_gib(size) for size in ((length + new) * self.token, self.weights, self.free)]
            raise DoesNotFitError(
                f"{length} tokens and an answer of {new} take {takes[0]} of keys and values beside {takes[1]} of "
                f"weights, and {takes[2]} of memory are free: {fits} tokens fit; lower --max-new-tokens, or add memory"
            )
        return {key: found[key] for key in ("input_ids", "attention_mask")}, new

    def load(self, messages: Messages) -> None:
        """Loads the weights, with layers spread over all GPUs, where there is room for an answer."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        prompt, new = self.room(messages)
        options: dict[str, Any] = {"quantization_config": self._quantisation} if self._quantisation else {}
        if self._gpus:
            options |= {"device_map": "auto", "max_memory": self.shares(prompt["input_ids"].shape[1] + new)}
        model: Any = AutoModelForCausalLM.from_pretrained(self._folder, dtype="auto", **options)
        if aside := {"cpu", "disk"} & {str(place) for place in getattr(model, "hf_device_map", {}).values()}:
            gpus = f"{len(self._gpus)} GPUs" if len(self._gpus) > 1 else "the GPU"
            raise DoesNotFitError(f"layers were left on the {aside.pop()}: {gpus} cannot hold them in whole layers")
        self._model = (PeftModel.from_pretrained(model, str(self._adapter)) if self._adapter else model).eval()

    def shares(self, tokens: int) -> dict[int, int]:
        """Bytes of weights that each GPU may take, beside its layers' keys and values of so many tokens."""
        share = USABLE * self.weights / (self.weights + tokens * self.token)
        return {gpu: int(free * share) for gpu, free in self._gpus.items()}

    @torch.inference_mode()
    def answer(self, messages: Messages) -> str:
        """Prints an answer word by word, and returns it."""
        from transformers import TextStreamer

        prompt, new = self.room(messages)
        stops: Any = self._model.generation_config.eos_token_id
        stops = {self._tokenizer.eos_token_id, *(stops if isinstance(stops, list) else [stops])} - {None}
        tokens = self._model.generate(
            **{key: value.to(self._model.device) for key, value in prompt.items()},
            max_new_tokens=new,
            do_sample=self._temperature > 0,
            temperature=self._temperature or None,
            eos_token_id=sorted(stops) or None,
            pad_token_id=self._tokenizer.pad_token_id,
            streamer=TextStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True),
        )
        return self._tokenizer.decode(tokens[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True).strip()


def chat(run_dir: str, part: str, prompt: str | None, **options: Any) -> None:
    """Answers a prompt, or each line of stdin: on a terminal with what was said before, until an empty line."""
    one = Chat(RunDirectory(Path(run_dir)), part, **options)
    history: Messages = []
    one.load([{"role": "user", "content": prompt or ""}])
    if prompt is None and sys.stdin.isatty():
        print("one question a line; an empty line begins a new conversation, Ctrl-D ends")
    for line in map(str.strip, sys.stdin if prompt is None else [prompt]):
        asked = [*history, {"role": "user", "content": line}]
        answer = one.answer(asked) if line else None
        history = [*asked, {"role": "assistant", "content": answer}] if answer and sys.stdin.isatty() else []


if __name__ == "__main__":
    run_program(chat)
