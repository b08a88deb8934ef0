"""Where causal language models keep embedding, blocks and head; transformers' plan to slice it."""

from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from shardwise.catalog.families.family import LOGIT_TRANSFORMS
from shardwise.catalog.stated import dropped
from shardwise.errors import UnsupportedError
from shardwise.models.wrapper import find_inside, text_config
from shardwise.spec.support.splits import GATHERED, has_one_key_head


@dataclass(frozen=True, kw_only=True)
class Anatomy:
    """The parts of one model; references, not copies. `backbone`: makes hidden states of token ids;
    `language`: makes logits, the model or a language model inside it (`models.wrapper`); `tied`:
    head and embedding share one tensor; `plain_head`: logits are `head(hidden)`, no more."""

    model: nn.Module
    backbone: nn.Module
    language: nn.Module
    embedding: nn.Module
    blocks: nn.ModuleList
    head: nn.Module
    tied: bool
    plain_head: bool

    @property
    def backbone_name(self) -> str:
        """What the model calls its backbone."""
        return next(name for name, module in self.model.named_modules() if module is self.backbone)

    @property
    def is_whole(self) -> bool:
        """Whether the model is a language model alone, and none inside a wrapper."""
        return text_config(cast(Any, self.model).config) is cast(Any, self.model).config


def find_anatomy(model: nn.Module) -> Anatomy:
    """The parts of a causal language model from transformers. Raises UnsupportedError: it does not
    have one embedding, one list of blocks and one linear head."""
    hugging_face = cast(Any, model)
    embedding, inside = hugging_face.get_input_embeddings(), find_inside(model)
    if inside is not None:
        backbone = model.get_submodule(inside.backbone)
    else:
        if not hasattr(model, hugging_face.base_model_prefix):  # of Llama 4 it is the name inside a larger model
            around = (name for name, child in model.named_children() if embedding in set(child.modules()))
            hugging_face.base_model_prefix = next(around, hugging_face.base_model_prefix)
        backbone = getattr(model, hugging_face.base_model_prefix, None)
    head = hugging_face.get_output_embeddings() or _last_linear(model)
    if embedding is None or head is None or not isinstance(backbone, nn.Module):
        raise UnsupportedError(
            f"{type(model).__name__} is not a causal language model with an embedding, a backbone and a head; "
            "Shardwise trains models that AutoModelForCausalLM builds"
        )
    config: Any = text_config(hugging_face.config)
    return Anatomy(
        model=model,
        backbone=backbone,
        language=model if inside is None else model.get_submodule(inside.language),
        embedding=embedding,
        blocks=find_blocks(backbone, num_layers=getattr(config, "num_hidden_layers", None)),
        head=head,
        tied=head.weight is embedding.weight,
        plain_head=all(getattr(config, key, None) in (None, 1, 1.0) for key in LOGIT_TRANSFORMS),
    )


def drops_out(model: nn.Module) -> bool:
    """Whether a model has dropout, by its modules or its configuration."""
    by_module = any(module.p > 0 for module in model.modules() if isinstance(module, nn.Dropout))
    return by_module or dropped(text_config(cast(Any, model).config).to_dict())[0]


def _last_linear(model: nn.Module) -> nn.Module | None:
    """A linear layer beside the backbone, where a model does not say which is its head."""
    linear = [module for module in model.children() if isinstance(module, nn.Linear)]
    return linear[0] if len(linear) == 1 else None


#: What families call their list of blocks.
_BLOCKS = ("layers", "h", "blocks", "layer", "block")


def find_blocks(backbone: nn.Module, *, num_layers: int | None) -> nn.ModuleList:
    """A backbone's list of blocks, including those a stage lets pass: the one as long as
    `num_layers` says, or named like one. Raises UnsupportedError: there is no one list of them."""
    lists = {name: m for name, m in backbone.named_modules() if isinstance(m, nn.ModuleList) and len(m)}
    inner = {id(below) for m in lists.values() for below in m.modules() if below is not m}
    outermost = {name: m for name, m in lists.items() if id(m) not in inner}
    counted = [m for m in outermost.values() if len(m) == num_layers]
    named = [m for name, m in outermost.items() if name.rpartition(".")[2] in _BLOCKS]
    for found in (counted, named):
        if len(found) == 1:
            return found[0]
    names = ", ".join(outermost) or "none"
    raise UnsupportedError(
        f"{type(backbone).__name__} has the lists of modules {names}, none of which alone is its decoder's blocks. "
        "This architecture is not trained by this version"
    )


#: Of each block's gates, which share is cut off.
_SPARSITY = "activation_sparsity_pattern"


def tensor_plan(config: Any) -> dict[str, str]:
    """How tensor parallelism slices the modules of a block: name inside the block -> transformers'
    style. Raises UnsupportedError: there is no plan of the blocks, nor one of their experts."""
    stated: dict[str, str] = getattr(config, "base_model_tp_plan", None) or {}
    # Embedding and head are sliced by rows here, whatever is said. A module stays whole of which a
    # plan slices parameters beside its matrices, such as a score for each head.
    named = {name: style for name, style in stated.items() if stated.get(name.rpartition(".")[0]) != "local_params"}
    plan = {inside: style for name, style in named.items() if (inside := name.partition(".*.")[2])}
    # All ranks have a single head of keys, and an MLP that cuts off gates by their mean (Gemma 3n).
    whole = (".k_proj", ".v_proj") if has_one_key_head(config) else ()
    whole += ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj") if any(getattr(config, _SPARSITY, None) or ()) else ()
    plan = {name: style for name, style in plan.items() if not name.endswith(whole)}
    if config.model_type in GATHERED:
        plan = {name: style.partition("_")[0] for name, style in plan.items()}
    if not plan and not getattr(config, "base_model_ep_plan", None):
        raise UnsupportedError(
            f"{config.model_type} has no tensor parallel plan of its blocks in transformers; write tp: 1, or use fsdp"
        )
    return plan
