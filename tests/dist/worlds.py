"""Worlds of real gloo processes for tests: torch is imported once, every rank is a fork.

Every world, that of one process too, runs in forked children, so that the parent never starts a
thread or a process group and can be forked again.
"""

import gc
import importlib
import multiprocessing
import os
import pickle
import socket
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.refusals import said_by  # noqa: F401 - cells take it from here

#: What ranks import on their way, imported here once and not in every fork of every world.
for _name in (
    *("shardwise.train.worker", "transformers.models.llama.modeling_llama", "transformers.optimization"),
    "peft.utils.transformers_weight_conversion",
):
    importlib.import_module(_name)

TIMEOUT_SECONDS = 150


def run_world(size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Runs `work(*arguments)` on ranks; what each returned; AssertionError: one failed."""
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:  # finds a port that nobody listens at
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    ranks = [
        context.Process(target=_rank, args=(rank, size, port, pipes[rank][1], work, arguments)) for rank in range(size)
    ]
    with warnings.catch_warnings():
        # Python 3.12 warns of forking a threaded process; the parent's threads idle in a pool.
        warnings.simplefilter("ignore", DeprecationWarning)
        for process in ranks:
            process.start()
    try:
        return [_answer(rank, pipe[0], ranks) for rank, pipe in enumerate(pipes)]
    finally:
        for process in ranks:  # all of them before any is waited for: those left behind would only fail in other words
            process.kill()
        for process in ranks:
            process.join()
        for receiving, sending in pipes:
            receiving.close()
            sending.close()


def _answer(rank: int, pipe: Any, ranks: list[Any]) -> Any:
    if not pipe.poll(TIMEOUT_SECONDS):
        raise AssertionError(f"rank {rank} gave no answer in {TIMEOUT_SECONDS} s")
    kind, value = pickle.loads(pipe.recv_bytes())
    assert kind == "result", f"rank {rank} of {len(ranks)} failed:\n{value}"
    return value


def _rank(rank: int, size: int, port: int, pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    gc.freeze()
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
    # The first call after a fork makes torch's thread pool anew; autograd's threads may not race.
    torch.set_num_threads(1)
    try:
        # Plain pickle copies tensors; a pipe's own `send` would share memory of this process.
        pipe.send_bytes(pickle.dumps(("result", work(*arguments))))
        if dist.is_initialized():
            dist.barrier()
            dist.destroy_process_group()
    except BaseException:  # noqa: BLE001  # whatever happens in a rank must reach the parent
        pipe.send_bytes(pickle.dumps(("failure", traceback.format_exc())))
    finally:
        os._exit(0)


def add_tokenizer(folder: Path, texts: list[str]) -> int:
    """Trains a byte-level BPE on texts for a model's folder; its size."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<pad>", "<bos>", "<eos>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=specials, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    fast.save_pretrained(folder)
    return len(fast)


def installed(families: Sequence[str]) -> tuple[str, ...]:
    """Those families that the installed transformers has: the oldest lacks the newest."""
    return tuple(family for family in families if family in CONFIG_MAPPING)


def skip_without(family: str) -> None:
    if family not in CONFIG_MAPPING:
        pytest.skip(f"the installed transformers has no {family}")


def toy_model(
    folder: Path, *, family="llama", tied=False, vocab_size=97, dtype=torch.float32, around: Any = None, **changes: Any
) -> Path:
    """A random model of a family, with grouped-query attention, saved as a Hugging Face folder
    without a tokenizer. `around`: the family of a model of text and images that it is the language
    model of."""
    torch.manual_seed(0)
    settings = SMALL | {"num_hidden_layers": 3, "vocab_size": vocab_size, "tie_word_embeddings": tied} | changes
    if around is None:
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings), dtype=dtype)
    else:
        config = wrapper_config(around, {"model_type": family, **settings}, tie_word_embeddings=tied)
        model = AutoModelForImageTextToText.from_config(config, dtype=dtype)
    correct_routers(model)
    model.save_pretrained(folder)
    return folder


#: Of every toy.
SMALL: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 80, "max_position_embeddings": 128}
SMALL |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def wrapper_config(family: str, text: dict[str, Any], **stated: Any) -> Any:
    """The configuration of a model of text and images, with a small tower."""
    seen: Any = AutoConfig.for_model(family).vision_config  # type: ignore[attr-defined]
    vision = {"model_type": seen.model_type, **{key: value for key, value in TOWER.items() if hasattr(seen, key)}}
    return AutoConfig.for_model(family, text_config=text, vision_config=vision, **stated)


#: Of the vision tower of a toy.
TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TOWER |= {"image_size": 28, "patch_size": 14, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
TOWER |= {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}


def correct_routers(model: torch.nn.Module) -> None:
    """Gives biases that correct what routers choose, and begin as zero, values that do."""
    for name, bias in [*model.named_buffers(), *model.named_parameters()]:
        if name.endswith("bias") and bias.is_floating_point() and not bias.requires_grad:
            torch.nn.init.normal_(bias, std=0.1)
