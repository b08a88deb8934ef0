"""Records one forward of a model on the meta device: what its blocks are given and give, the
operators in them, and what ran outside.

Attention and masks are registered with transformers under a name of our own.
"""

from collections import Counter
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from shardwise.models.anatomy import Anatomy
from shardwise.models.known_ahead import replaced
from shardwise.models.stage import Place, tensors_given

WATCHED = "shardwise_watched"
#: More than any number of blocks.
CHANGED = 2**31
#: How a kernel is told where packed documents lie.
DOCUMENTS = "cu_seq_lens_q"
#: Primes, by which no number of tokens fits a shape that a row of them does not.
BATCH, LENGTH = 11, 13


@dataclass(kw_only=True, eq=False)
class MaskCall:
    """A mask asked of transformers; `by_positions`: it separates packed documents by positions."""

    causal: bool
    by_positions: bool


@dataclass(kw_only=True, eq=False)
class AttentionCall:
    """One call of transformers' attention interface. `mask`: None where the model's is not from
    transformers; `words`: names of arguments beside queries, keys, values and the mask."""

    mask: MaskCall | None
    words: frozenset[str]


@dataclass(kw_only=True, eq=False)
class BlockCall:
    """One call of a decoder block. `given`: the residual stream; `others`: the tensors that it was
    given beside it, of mappings those that it read, and where; `ops`: the operators that ran on
    what was made of tokens; `ran`: how often each of its leaf modules with weights did."""

    name: str
    given: torch.Tensor
    made: torch.Tensor | None = None
    attention: list[AttentionCall] = field(default_factory=list[AttentionCall])
    ops: set[str] = field(default_factory=set[str])
    read: set[int] = field(default_factory=set[int])
    ran: Counter[str] = field(default_factory=Counter[str])
    others: list[tuple[Place, torch.Tensor]] = field(default_factory=list[tuple[Place, torch.Tensor]])


@dataclass(kw_only=True, eq=False)
class Seen:
    """One forward of a causal language model. `of_tokens`: ids of tensors made of tokens or by a
    matrix, and not of positions alone -> how many blocks ran before what one of them made of it,
    which something between blocks did not change, else `CHANGED`; `ran_outside`: name of each leaf
    module that ran outside the blocks -> how many had run before it; `returned`: values of a
    block's tuple, 0 for a tensor."""

    blocks: list[BlockCall] = field(default_factory=list[BlockCall])
    of_tokens: dict[int, int] = field(default_factory=dict[int, int])
    ran_outside: dict[str, int] = field(default_factory=dict[str, int])
    returned: int = 0


def is_linear(module: nn.Module) -> bool:
    """A matrix with or without a bias: torch's, or GPT-2's, which is stored the other way round."""
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, nn.Linear | Conv1D)


@contextmanager
def watchable() -> Generator[None]:
    """In it transformers knows WATCHED as `attn_implementation` and `experts_implementation`."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    tables = (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS, ALL_EXPERTS_FUNCTIONS)
    for table, stand_in in zip(tables, (_unwatched, _unwatched, _expert), strict=True):
        table.register(WATCHED, stand_in)
    try:
        yield
    finally:
        for table in tables:
            cast(dict[str, Any], table._global_mapping).pop(WATCHED, None)


def _expert(_experts: nn.Module, hidden: torch.Tensor, *_routes: Any, **_words: Any) -> torch.Tensor:
    """In the place of experts: a tensor like what they give, made of what they get."""
    return hidden.new_empty(hidden.shape)


def _unwatched(*_args: Any, **_kwargs: Any) -> Any:
    raise RuntimeError("attention is watched only inside `watch`")


def watch(anatomy: Anatomy, *, packed: bool = True) -> Seen:
    """Runs one forward of a model on the meta device, built with `attn_implementation=WATCHED`
    inside `watchable`. `packed`: it is told where packed documents lie, as far as its code takes
    that. Raises Exception: whatever the model's code raises where there are no numbers."""
    watcher = _Watcher(anatomy)
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="meta")
    positions = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="meta")
    watcher.seen.of_tokens[id(ids)] = 0
    called = anatomy.model if anatomy.is_whole else anatomy.backbone
    takes_all = any(one.kind is one.VAR_KEYWORD for one in signature(called.forward).parameters.values())
    takes_positions = takes_all or "position_ids" in signature(called.forward).parameters
    told = {DOCUMENTS: positions} if takes_all and packed else {}
    told |= {"position_ids": positions} if takes_positions and packed else {}
    with torch.no_grad(), watcher.hooked(positions), watcher:
        made = cast(Any, called)(input_ids=ids, use_cache=False, **told)
        if not anatomy.is_whole:  # a wrapper's own forward looks for images among the ids
            anatomy.head(made.last_hidden_state)
    return watcher.seen


class _Watcher(TorchDispatchMode):
    def __init__(self, anatomy: Anatomy) -> None:
        super().__init__()
        self.seen = Seen()
        self._anatomy = anatomy
        self._kept: list[Any] = []  # ids are of tensors that live
        self._block: BlockCall | None = None
        self._masks: dict[int, MaskCall] = {}  # by storage: some code slices all of a mask
        self._asked_positions = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        known = self.seen.of_tokens
        given = {id(leaf) for leaf in tree_leaves((args, kwargs))} & known.keys()
        if given:
            for leaf in tree_leaves(result):
                self._mark(leaf, CHANGED if any(known[one] for one in given) else 0)
            if self._block is not None:
                self._block.ops.add(func.overloadpacket.__name__)
                self._block.read |= given
        self._kept.append(result)
        return result

    @contextmanager
    def hooked(self, positions: torch.Tensor) -> Generator[None]:
        """Hooks on every block and leaf module, and stand-ins for attention and masks."""
        blocks = {id(block) for block in self._anatomy.blocks}
        with ExitStack() as stack:
            for name, module in self._anatomy.model.named_modules():
                if id(module) in blocks:
                    self._hook(stack, module, partial(self._enter_block, name), self._leave_block)
                elif not [*module.children()] or (module._parameters and not blocks & {*map(id, module.modules())}):
                    self._hook(stack, module, partial(self._enter_leaf, name), self._leave_leaf)
                if name.rpartition(".")[2] == "experts" and not isinstance(module, nn.ModuleList):
                    module.forward = partial(_expert, module)  # of a family whose own code reads the routes
                    stack.callback(vars(module).pop, "forward")
            stack.enter_context(self._standing_in(positions))
            yield

    def _hook(
        self, stack: ExitStack, module: nn.Module, enter: Callable[..., None], leave: Callable[..., None]
    ) -> None:
        stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
        stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)

    def _mark(self, made: Any, outside: int = 0) -> None:
        if isinstance(made, torch.Tensor):
            self._kept.append(made)
            self.seen.of_tokens[id(made)] = outside if self._block is None else len(self.seen.blocks)

    def _enter_block(self, name: str, _module: nn.Module, args: Any, kwargs: Any) -> None:
        given = args[0] if args else kwargs["hidden_states"]
        others = [one for one in tensors_given(args, kwargs) if one[1] is not given]
        self._block = BlockCall(name=name, given=given, others=others)
        self.seen.blocks.append(self._block)
        self.seen.of_tokens.setdefault(id(given), 0)

    def _leave_block(self, _module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        several = isinstance(output, tuple | list)
        made = output[0] if several else output
        self.seen.returned = len(cast(tuple[Any, ...], output)) if several else 0
        if self._block is not None and isinstance(made, torch.Tensor):
            self._block.made = made
            self._kept.append(made)
            read = self._block.read
            self._block.others = [one for one in self._block.others if id(one[1]) in read]
        self._block = None

    def _enter_leaf(self, name: str, module: nn.Module, *_: Any) -> None:
        if self._block is None:
            self.seen.ran_outside[name] = len(self.seen.blocks)
        elif module._parameters:
            self._block.ran[name] += 1

    def _leave_leaf(self, module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        if (is_linear(module) or isinstance(module, nn.Embedding)) and id(output) not in self.seen.of_tokens:
            self._mark(output)  # of positions too: another stage has no such table

    def _standing_in(self, positions: torch.Tensor) -> AbstractContextManager[None]:
        from transformers import PreTrainedModel, masking_utils
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        def find_packed(position_ids: torch.Tensor) -> None:
            self._asked_positions = position_ids is positions

        ALL_ATTENTION_FUNCTIONS.register(WATCHED, self._attend)
        ALL_MASK_ATTENTION_FUNCTIONS.register(WATCHED, self._make_mask)
        no_padding, overlay = torch.zeros(1, dtype=torch.long), masking_utils.chunked_overlay
        return replaced(
            # The others look for padding, among the ids, which are no numbers here.
            (masking_utils, "chunked_overlay", lambda size, _padding: overlay(size, no_padding)),
            (masking_utils, "find_packed_sequence_indices", find_packed),
            (PreTrainedModel, "warn_if_padding_and_no_attention_mask", lambda *_: None),
        )

    def _make_mask(self, *_args: Any, mask_function: Callable[..., Any], **words: Any) -> torch.Tensor:
        """A mask without content; what it would have let through is remembered."""
        window = words.get("local_size")

        def sees(query: int, key: int) -> bool:
            with _disable_current_modes():
                zero = torch.tensor(0)
                return bool(mask_function(zero, zero, torch.tensor(query), torch.tensor(key)))

        near = window == 1 or sees(1, 0)
        causal = near and not sees(0, 1) and (not sees(window, 0) if window else sees(10**9, 0))
        mask = torch.empty(BATCH, 1, LENGTH, LENGTH, device="meta")
        self._masks[mask.untyped_storage()._cdata] = MaskCall(causal=causal, by_positions=self._asked_positions)
        self._kept.append(mask)
        self._asked_positions = False
        return mask

    def _attend(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **words: Any,
    ) -> tuple[torch.Tensor, None]:
        # With fewer heads than a configuration states for keys, none is repeated.
        heads, each = query.shape[1], getattr(module, "num_key_value_groups", query.shape[1] // key.shape[1]) or 1
        if heads != key.shape[1] * each or query.shape[3] != key.shape[3] or not value.shape[3]:
            of, by = (f"{one.shape[1]} heads of width {one.shape[3]}" for one in (query, key))
            raise ValueError(f"queries of {of} meet keys of {by}, {each} of these for each")
        made = query.new_empty(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
        if self._block is not None:
            told = frozenset(word for word, said in words.items() if said is not None)
            self._block.read |= {id(key), id(value), *map(id, words.values())}
            mask = None if attention_mask is None else self._masks.get(attention_mask.untyped_storage()._cdata)
            self._block.attention.append(AttentionCall(mask=mask, words=told))
        self._mark(made)
        return made, None
