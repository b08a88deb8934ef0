"""A model that a user has in memory: as a job, what is refused, and copies without weights."""

import copy
import json
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from types import FunctionType
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shardwise.catalog.config import shape_from_data
from shardwise.catalog.stated import UnlistedFamilyError
from shardwise.errors import InputError, UnsupportedError
from shardwise.methods.lora import is_adapter, leave_inputs
from shardwise.models.anatomy import find_anatomy
from shardwise.models.built.shape import built_shape
from shardwise.models.routing import noise_left_out
from shardwise.models.wrapper import text_config
from shardwise.parallel.context import attention_of
from shardwise.parallel.mesh import World
from shardwise.spec.adapters.targets import adapter_refusals
from shardwise.spec.job.file import job_from_data
from shardwise.spec.layout.execution import Execution, Precision
from shardwise.spec.model.shape import ModelShape
from shardwise.spec.support.trained import execution_refusals
from shardwise.train.guards.checks import gather, part_hashes
from shardwise.train.model import join_where_alone
from shardwise.train.precision import TYPES, type_name

#: Ends of the names of all that PEFT's LoRA trains here: of matrices, and of copies of modules.
_TRAINED_PARTS = (".lora_A.default.weight", ".lora_B.default.weight", ".lora_magnitude_vector.default.weight")
_COPY = ".modules_to_save.default."

#: All names of shared parameters too.
_named = partial(nn.Module.named_parameters, remove_duplicate=False)

#: Kernels that a model in memory may be set to.
_ATTENTION = ("sdpa", "eager", "flash_attention_2", "flash_attention_3")


@dataclass(frozen=True, kw_only=True)
class Given:
    """A model of transformers. `adapters`: PEFT's around it, or None; `values`: tensors by name."""

    base: nn.Module
    adapters: Any
    values: dict[str, torch.Tensor]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Raises UnsupportedError: what it is, is not trained."""
        adapters = _peft_model(model)
        base: nn.Module = model if adapters is None else adapters.get_base_model()
        for reason in chain(_refusals(base, adapters), () if adapters is None else _of_adapters(adapters, base)):
            raise UnsupportedError(reason)
        return cls(base=base, adapters=adapters, values={name: p.detach() for name, p in _named(base)})

    @cached_property
    def shape(self) -> ModelShape:
        """Read from its configuration, as from a config.json."""
        config: Any = json.loads(cast(Any, self.base).config.to_json_string())
        try:
            return shape_from_data(config, file="the model's configuration")
        except UnlistedFamilyError as error:
            return built_shape(config, file=error.file)

    @property
    def precision(self) -> Precision:
        """That of its weights as they are. Raises InputError: no precision has such types."""
        trained = {p.dtype for _, p in _named(self.base) if p.requires_grad}
        frozen = {p.dtype for _, p in _named(self.base) if not p.requires_grad} or trained
        for name in ("fp32", "bf16", "mixed"):
            if trained == {TYPES[name].trainable} and frozen == {TYPES[name].frozen}:
                return name
        types = ", ".join(sorted({type_name(dtype) for dtype in trained | frozen}))
        raise InputError(f"the model's weights are {types}; say which precision to train in: mixed, bf16 or fp32")

    @property
    def lora(self) -> dict[str, Any] | None:
        """Its adapters in the words of a job, None without."""
        if self.adapters is None:
            return None
        config = self.adapters.peft_config["default"]
        ends = {name.partition(".lora_A.")[0].rpartition(".")[2] for name in self.values if ".lora_A." in name}
        same = ("r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora")
        names = {"target_modules": sorted(ends), "modules_to_save": list(config.modules_to_save or ())}
        return {name: getattr(config, name) for name in same} | names

    @property
    def saved_dtype(self) -> torch.dtype:
        """As it came; of adapters, the type they are in."""
        return next(p.dtype for _, p in _named(self.base) if p.requires_grad)

    def refuse(self, execution: Execution) -> None:
        """Raises UnsupportedError: `shardwise train` would refuse it too; says why."""
        if left_out := noise_left_out(cast(Any, self.base).config):
            warnings.warn(left_out, stacklevel=3)
        blocks, stated = len(find_anatomy(self.base).blocks), self.shape.num_layers
        if blocks < stated:
            raise InputError(f"the model has {blocks} blocks, and its config {stated}; set config.num_hidden_layers")
        asked: dict[str, Any] = {"model": "given", "data": {"max_length": 1}}
        job = job_from_data(asked if self.lora is None else {**asked, "method": "lora", "lora": self.lora})
        reasons = execution_refusals(job, execution, model=self.shape) + adapter_refusals(self.shape, job.adapters)
        if execution.precision == "fp16":
            reasons.append("precision fp16 scales the loss, which a loop of one's own does not; use `shardwise train`")
        if reasons:
            raise UnsupportedError("; ".join(reasons))

    def agree(self, world: World) -> None:
        """Takes rank 0's values where ranks have others, as DDP does: PEFT draws adapters anew in
        every process. Raises InputError: ranks were given different models."""
        here = [(name, nn.Parameter(value, requires_grad=False)) for name, value in self.values.items()]
        hashes = {name: value for (name, _, _), value in part_hashes(here).items()}
        everyone = gather(world, ([(name, tuple(p.shape), str(p.dtype)) for name, p in here], hashes))
        if any(known != everyone[0][0] for known, _ in everyone):
            raise InputError("ranks were given different models: names, shapes or types of their weights differ")
        for name, value in self.values.items():
            if len({theirs[name] for _, theirs in everyone}) > 1:
                # By the group that is there for small messages, which is gloo's.
                whole = value.cpu().contiguous()
                dist.broadcast(whole, 0, group=world.control)
                value.copy_(whole)

    def without_weights(self, execution: Execution) -> tuple[nn.Module, Any]:
        """A copy of the model, and of its PEFT model, with parameters on the meta device."""
        # `deepcopy` takes what it finds here for copied already: no weight is copied in memory.
        memo = {id(p): nn.Parameter(p.to("meta"), requires_grad=p.requires_grad) for _, p in _named(self.base)}
        whole: Any = copy.deepcopy(self.base if self.adapters is None else self.adapters, memo)
        base = whole if self.adapters is None else whole.get_base_model()
        base.config._attn_implementation = attention_of(execution)
        if self.adapters is None:
            return base, None
        leave_inputs(whole)
        join_where_alone(base, execution)
        return base, whole

    def let_go(self) -> None:
        """Moves the user's model to the meta device: the parallelized model now has its weights."""
        self.values.clear()
        for module in self.base.modules():
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)


def _peft_model(model: Any) -> Any:
    """The model where it is PEFT's. Raises UnsupportedError: it has adapters of another kind."""
    configs: dict[str, Any] | None = getattr(model, "peft_config", None)
    if configs is None:
        return None
    if not hasattr(model, "get_base_model"):
        raise UnsupportedError("the model's adapters were added by transformers; add them by peft.get_peft_model")
    if list(configs) != ["default"]:
        raise UnsupportedError(f"the model has the adapters {', '.join(configs)}; one is trained, named default")
    kind = str(getattr(configs["default"].peft_type, "value", configs["default"].peft_type))
    if kind != "LORA":
        raise UnsupportedError(f"the model's adapter is {kind}; of PEFT's kinds LORA is trained")
    return model


def untouched(named: Iterable[tuple[str, nn.Parameter]]) -> Iterator[str]:
    """What a loop did to parameters that has no effect on their parts."""
    for name, p in named:
        if p._backward_hooks or cast(Any, p)._post_accumulate_grad_hooks:
            yield f"{name} has a hook, which would not run; change p.grad between step(batch) and optimizer.step()"
        if not p.requires_grad:
            yield f"{name} was frozen after parallelize, which has no effect; leave it out of the optimizer"


def _refusals(base: Any, adapters: Any) -> Iterator[str]:
    yield from untouched((name, p) for name, p in _named(base) if p.requires_grad)
    classes = {kind.__name__ for kind in type(base).__mro__ if issubclass(kind, PreTrainedModel)}
    if classes and text_config(base.config) is not base.config:
        yield (
            f"{type(base).__name__} is a model of more than text; of such a one `shardwise train` trains the language "
            "model, and parallelize takes language models alone"
        )
    if classes.isdisjoint(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()):
        yield f"{type(base).__name__} is not a causal language model of transformers"
    if getattr(base, "hf_quantizer", None) is not None or getattr(base, "is_quantized", False):
        yield (
            "the model is quantised; parallelize trains weights in 32 or 16 bits. For QLoRA use `shardwise train` with "
            "method: qlora"
        )
    if len(set((getattr(base, "hf_device_map", None) or {}).values())) > 1:
        yield "the model is spread by device_map; load it without, and let the layout spread it"
    if any(parameter.is_meta for parameter in base.parameters()):
        yield "the model's weights are on the meta device; load them, or use `shardwise train`"
    if any(getattr(module, "gradient_checkpointing", False) is True for module in base.modules()):
        yield "the model has gradient checkpointing enabled; leave it off, and write gradient_checkpointing='full'"
    if (kind := base.config._attn_implementation) not in _ATTENTION:
        yield f"the model's attn_implementation is {kind}; use {', '.join(_ATTENTION)}"
    frozen = [] if adapters is not None else [name for name, p in _named(base) if not p.requires_grad]
    with torch.device("meta"):  # what its class freezes stays so
        usual = {name for name, p in _named(type(base)(base.config)) if not p.requires_grad} if frozen else ()
    if frozen := [name for name in frozen if name not in usual]:
        yield (
            f"{frozen[0]} is frozen (requires_grad is False); parallelize trains all weights, or adapters that "
            "PEFT puts beside frozen ones: make all trainable, or add adapters by peft.get_peft_model"
        )
    for what in _passed_over(base, base.get_output_embeddings(), adapters):
        yield (
            f"{what}, which step would not run as the model's forward does: it makes hidden states and the mean loss "
            "over trained tokens itself. Leave it out, or change a class of a module inside the backbone"
        )


def _passed_over(base: Any, head: Any, adapters: Any) -> Iterator[str]:
    """What a model computes of its own beside its backbone and head, or not by its parameters."""
    for one in (base, base.base_model):
        package = type(one).forward.__module__.partition(".")[0]
        if "forward" in vars(one) or package not in ("transformers", "liger_kernel"):  # whose loss is the same
            yield f"{type(one).__name__} has a forward of its own"
    if hasattr(base, "_loss_function"):
        yield "the model has a loss_function of its own"
    around = {"the model": base, "its backbone": base.base_model, "its head": head, "PEFT's model": adapters}
    for name, one in around.items():
        if any(getattr(one, f"_{when}_hooks", None) for when in ("forward", "forward_pre", "backward", "backward_pre")):
            yield f"{name} has a hook"
    for name, one in base.named_modules():
        if isinstance(vars(one).get("forward"), FunctionType) or (one is head and "forward" in vars(one)):
            yield f"the forward of {name} was replaced"


def _of_adapters(adapters: Any, base: Any) -> Iterator[str]:
    """What PEFT trains beside LoRA's matrices and copies of modules."""
    for name, parameter in _named(base):
        known = name.endswith(_TRAINED_PARTS) if is_adapter(name) else _COPY in name
        if (parameter.requires_grad or is_adapter(name)) and not known:
            yield (
                f"the adapter trains {name}; of PEFT's LoRA, matrices of linear layers, DoRA and modules_to_save are "
                "trained, with bias: none"
            )
    variants = {type(one).__name__ for m in base.modules() for one in (getattr(m, "lora_variant", None) or {}).values()}
    if others := sorted(name for name in variants if "Dora" not in name):
        yield f"the adapter is of the variant {', '.join(others)}; LoRA, rsLoRA and DoRA are trained"
    modules, config = [vars(module) for module in base.modules()], adapters.peft_config["default"]
    if any(one.get("merged_adapters") or one.get("_disable_adapters") for one in modules):
        yield "the adapter is merged into the model, or off; call unmerge_adapter() and enable_adapter_layers() before"
    if not any(p.requires_grad for p in base.parameters()):
        yield "the adapter is frozen; load it with PeftModel.from_pretrained(..., is_trainable=True)"
    if any(isinstance(one.get("parameter_name"), str) for one in modules):
        yield "the adapter is of stacked experts or routers; parallelize trains those of linear layers, as in attention"
    if config.layer_replication:
        yield "the adapter replicates layers (layer_replication), which then share weights; leave that out"
    if config.bias != "none":
        yield f"the adapter's bias is {config.bias}; use bias: none"
    with suppress(OSError):  # transformers' for a model that is not here
        source, tokens = config.base_model_name_or_path or "", base.config.vocab_size
        stated = PretrainedConfig.get_config_dict(source, local_files_only=True)[0].get("vocab_size", tokens)
        ends = (base.get_input_embeddings(), base.get_output_embeddings())
        if stated != tokens and not all(hasattr(end, "modules_to_save") for end in ends):
            yield (
                f"the vocabulary has {tokens} tokens, and that of {source} {stated}: files of an adapter would lack "
                "the new embeddings; name both ends in modules_to_save, or save the resized model and adapt that"
            )
