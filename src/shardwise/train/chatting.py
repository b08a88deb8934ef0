"""Answers with what a run trained, on the user's stdin and stdout."""

import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jinja2 import TemplateError

from shardwise.catalog.devices import available_memory
from shardwise.errors import DoesNotFitError, InputError, ShardwiseError, UnsupportedError, said
from shardwise.models.built.shape import shape_of
from shardwise.models.load import build_on_meta, read_config
from shardwise.models.nf4 import quantise_linear_layers
from shardwise.models.nf4_experts import quantise_experts
from shardwise.models.published import widened_by_transformers
from shardwise.models.wrapper import auto_class
from shardwise.spec.job.file import read_job
from shardwise.spec.plan.generation import USABLE, cache_elements
from shardwise.spec.run import RunDirectory, read_json
from shardwise.train.result import base_of, experts_in_4_bits, find_base, listed, stop_ids
from shardwise.units import format_gib

Messages = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What was answered, its `tokens` without the one that ended it, and why it `stopped`."""

    text: str
    tokens: int
    stopped: Literal["stop", "length"]


class Chat:
    """Answers with what a run `trained`, with its `base`, or with what was `merged`. In bytes:
    `weights`; `token`, keys and values of one; `free`, of all GPUs, or of the machine. `opening`:
    the `system` message, with which each conversation begins."""

    def __init__(
        self,
        run: RunDirectory,
        part: str,
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float | None = None,
        seed: int | None = None,
        system: str | None = None,
        base_model: str | None = None,
    ) -> None:
        from transformers import AutoTokenizer

        self._most, self._seed, self.asked_to_stop = max_new_tokens, seed, False
        self._drawn: dict[str, Any] = {"do_sample": temperature > 0, "temperature": temperature or None}
        self._drawn |= {} if top_p is None else {"top_p": top_p}
        self.opening: Messages = [] if system is None else [{"role": "system", "content": system}]
        has_adapter = part != "merged" and (run.final / "adapter_config.json").is_file()
        self._adapter = run.final if has_adapter and part == "trained" else None
        self._folder, self._quantisation = run.merged if part == "merged" else run.final, None
        if has_adapter:
            self._folder, self._quantisation = base_of(run, base_model)
        elif part == "base":
            self._folder = find_base(run, base_model)
        self._learned = set[int]() if part == "base" else stop_ids(run.final)
        self._experts = experts_in_4_bits(run)
        self._wide = widened_by_transformers(read_json(self._folder / "config.json") or {})
        self._rope = read_job(run.resolved).rope_scaling if self._adapter else None
        four_bits = "which transformers does not put into 4 bits while it loads"
        stretched = "and its positions are stretched by rope_scaling"
        for asked, why in ((self._quantisation, four_bits), (self._rope, stretched)):
            if self._wide is not None and asked is not None:
                published = f"{run.root}: its base is published in fewer bits, {why}"
                raise UnsupportedError(f"{published}; run `shardwise merge` and chat with --merged")
        self._tokenizer: Any = AutoTokenizer.from_pretrained(run.final)
        config = read_config(self._folder, rope=self._rope)
        shape = shape_of(str(self._folder), rope=self._rope)
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
        """The prompt as token ids and mask [1, length], and how many tokens the answer may have.
        Raises DoesNotFitError: memory, or the model's positions, hold fewer than were asked for;
        InputError: the chat template refuses the conversation, or leaves its system message out."""
        templated = self._tokenizer.chat_template is not None  # otherwise the text is continued
        text = self._rendered(messages) if templated else "\n".join(one["content"] for one in messages)
        found = self._tokenizer(text, add_special_tokens=not templated, return_tensors="pt")
        length = found["input_ids"].shape[1]
        new = min(self._most, self._positions - length)
        fits = max(0, int(USABLE * self.free - self.weights) // max(self.token, 1))
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

    def _rendered(self, messages: Messages) -> str:
        try:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except TemplateError as error:
            raise InputError(f"the chat template refuses the conversation: {said(error)}; write another") from None
        if any(one["role"] == "system" and one["content"].strip() not in text for one in messages):
            raise InputError("the chat template writes no system message; leave --system out")
        return text

    def load(self, messages: Messages) -> None:
        """Loads the weights, over all GPUs, where there is room for an answer."""
        from peft import PeftModel

        prompt, new = self.room(messages)
        quantisation = self._quantisation or self._wide
        options: dict[str, Any] = {"quantization_config": quantisation} if quantisation else {}
        if self._gpus:
            options |= {"device_map": "auto", "max_memory": self.shares(prompt["input_ids"].shape[1] + new)}
        config = read_config(self._folder, rope=self._rope)
        options |= {"config": config} if self._rope is not None else {}
        model: Any = auto_class(config).from_pretrained(self._folder, dtype="auto", **options)
        if aside := {"cpu", "disk"} & {str(place) for place in getattr(model, "hf_device_map", {}).values()}:
            gpus = f"{len(self._gpus)} GPUs" if len(self._gpus) > 1 else "the GPU"
            raise DoesNotFitError(f"layers were left on the {aside.pop()}: {gpus} cannot hold them in whole layers")
        self._model: Any = PeftModel.from_pretrained(model, str(self._adapter)) if self._adapter else model
        self._model.requires_grad_(False).eval()
        if self._quantisation is not None and self._experts:
            quantise_experts(self._model, dtype=self._quantisation.bnb_4bit_compute_dtype)

    def shares(self, tokens: int) -> dict[int, int]:
        """Bytes of weights that each GPU may take, beside keys and values of so many tokens."""
        share = USABLE * self.weights / (self.weights + tokens * self.token)
        return {gpu: int(free * share) for gpu, free in self._gpus.items()}

    def interrupt(self, *_: Any) -> None:
        """Handles SIGINT; where Python drops what is raised, the next token raises it again."""
        self.asked_to_stop = True
        raise KeyboardInterrupt

    def _interrupted(self, tokens: torch.Tensor, _: Any, **_others: Any) -> torch.Tensor:
        if self.asked_to_stop:
            raise KeyboardInterrupt
        return torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)

    @torch.inference_mode()
    def answer(self, messages: Messages, *, aloud: bool = True) -> Reply:
        """Makes an answer, printed word by word if `aloud`; with a seed always the same."""
        from transformers import StoppingCriteriaList, TextStreamer

        self.asked_to_stop = False
        prompt, new = self.room(messages)
        if self._seed is not None:
            torch.manual_seed(self._seed)
        stops: Any = self._model.generation_config.eos_token_id
        stops = {self._tokenizer.eos_token_id, *listed(stops), *self._learned} - {None}
        tokens = self._model.generate(
            **{key: value.to(self._model.device) for key, value in prompt.items()},
            max_new_tokens=new,
            **self._drawn,
            eos_token_id=sorted(stops) or None,
            pad_token_id=self._tokenizer.pad_token_id,
            stopping_criteria=StoppingCriteriaList([self._interrupted]),
            streamer=TextStreamer(self._tokenizer, skip_prompt=True, skip_special_tokens=True) if aloud else None,
        )
        made = tokens[0, prompt["input_ids"].shape[1] :].tolist()
        ended = bool(made) and made[-1] in stops
        text = self._tokenizer.decode(made, skip_special_tokens=True).strip()
        return Reply(text=text, tokens=len(made) - ended, stopped="stop" if ended else "length")


def _line(*, talks: bool) -> str | None:
    """The next line of stdin, None at its end. Raises InputError: it is no text."""
    try:
        if talks:
            return input("> " if sys.stdout.isatty() else "").strip()
        line = sys.stdin.buffer.readline()
        return line.decode().strip() if line else None
    except EOFError:
        return None
    except UnicodeDecodeError:
        raise InputError("this line is not UTF-8 text, and was not asked") from None


def _turn(one: Chat, history: Messages, line: str, *, as_json: bool) -> Messages:
    """Asks and answers; what is then in the conversation. An empty line begins a new one."""
    asked = [*history, {"role": "user", "content": line}]
    answer = one.answer(asked, aloud=not as_json) if line else None
    if as_json:
        _print_json(line, **(vars(answer) if answer else {"text": "", "tokens": 0, "stopped": None}))
    return [*asked, {"role": "assistant", "content": answer.text}] if answer else one.opening


def _print_json(
    line: str | None, *, text: str | None, tokens: int = 0, stopped: str | None = None, **also: str
) -> None:
    """A line for each question, asked or not, so that a program can count them."""
    print(json.dumps({"prompt": line, "answer": text, "tokens": tokens, "stopped": stopped, **also}), flush=True)


def _converse(one: Chat, *, as_json: bool) -> int:
    """Answers each line of stdin, on a terminal with what was said before. What goes wrong in a
    turn ends the turn; the exit code is that of the last fault, on a terminal 0."""
    talks, history, code = sys.stdin.isatty(), one.opening, 0
    if talks:
        signal.signal(signal.SIGINT, one.interrupt)
    while True:
        line: str | None = None
        try:
            if (line := _line(talks=talks)) is None:
                return 0 if talks else code
            history = _turn(one, history if talks else one.opening, line, as_json=as_json)
        except KeyboardInterrupt:
            if not talks:
                raise
            said = "stopped; this turn is left out of the conversation, Ctrl-D ends the session"
            print(f"\n{said}", file=sys.stderr)
        except ShardwiseError as error:
            code = error.exit_code
            print(f"error: {error}", file=sys.stderr, flush=True)
            if as_json:
                _print_json(line, text=None, error=str(error))


def chat(run_dir: str, part: str, prompt: str | None, *, as_json: bool = False, **options: Any) -> None:
    """Answers a prompt, or each line of stdin, on a terminal as a conversation."""
    one = Chat(RunDirectory(Path(run_dir)), part, **options)
    one.load([*one.opening, {"role": "user", "content": prompt or ""}])
    for stream, errors in ((sys.stdin, "strict"), (sys.stdout, "replace")):
        stream.reconfigure(errors=errors)  # pyright: ignore[reportAttributeAccessIssue]  # as the program's own are
    try:
        if prompt is not None:
            _turn(one, one.opening, prompt, as_json=as_json)
            return
        if sys.stdin.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401  # edits lines, and keeps those before
            print("one question a line; an empty line begins a new conversation, Ctrl-D ends", file=sys.stderr)
        sys.exit(_converse(one, as_json=as_json))
    except BrokenPipeError:  # the reader has enough; Python flushes the rest at exit, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
