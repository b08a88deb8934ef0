"""How rotary positions are stretched, in transformers' words (`rope_parameters`)."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from shardwise.spec.job.strict import NotNegative, Positive, Strict, Whole

#: What each kind needs, and what else it has.
_NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"),
    "longrope": ("factor", "short_factor", "long_factor", "original_max_position_embeddings"),
}
_OTHERS: dict[str, tuple[str, ...]] = {
    "yarn": (
        *("original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale"),
        *("mscale_all_dim", "truncate"),
    ),
    "longrope": ("attention_factor",),
}


def _renamed(value: Any) -> Any:
    """`type` is how configurations of transformers 4 call `rope_type`."""
    if not isinstance(value, dict) or "type" not in value or "rope_type" in value:
        return cast(Any, value)
    return {"rope_type" if key == "type" else key: one for key, one in cast(dict[str, Any], value).items()}


class RopeScaling(Strict):
    """How rotary positions are stretched; a key that a kind does not have is refused.

    Attributes:
        rope_type: transformers' name of the rule; `type` means the same.
        factor: how many times the positions become more.
        original_max_position_embeddings: positions it was trained on first; else config.json's.
        rope_theta: base of the frequencies; by default that of config.json.
        attention_factor: what sines and cosines are multiplied by; by default as the kind says.
        beta_fast, beta_slow: turns within the original positions above which yarn leaves a
            frequency, and below which it divides it by the factor; 32 and 1 by default.
        mscale, mscale_all_dim: DeepSeek's numbers behind yarn's `attention_factor`.
        truncate: whether yarn rounds the dimensions at which these turns lie; true by default.
        low_freq_factor, high_freq_factor: likewise of llama3, in turns.
        short_factor, long_factor: of longrope, divisors of frequencies below and beyond these.
    """

    rope_type: Literal["linear", "dynamic", "yarn", "llama3", "longrope"]
    factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] | None = None
    original_max_position_embeddings: Whole | None = None
    rope_theta: Positive | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: NotNegative | None = None
    mscale_all_dim: NotNegative | None = None
    truncate: bool | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    short_factor: list[Positive] | None = None
    long_factor: list[Positive] | None = None

    @property
    def stated(self) -> dict[str, Any]:
        """The keys that are set."""
        return self.model_dump(exclude_none=True)

    def reach(self, positions: int) -> int:
        """How many positions the model has with it, of `positions` that its config.json states."""
        return int((self.factor or 1.0) * (self.original_max_position_embeddings or positions))

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> Self:
        needed = _NEEDED[self.rope_type]
        known = {"rope_type", "rope_theta", *needed, *_OTHERS.get(self.rope_type, ())}
        if lacking := [key for key in needed if key not in self.stated]:
            raise ValueError(f"rope_type {self.rope_type} needs {', '.join(lacking)}; add what its publisher advises")
        if foreign := [key for key in self.stated if key not in known]:
            raise ValueError(f"rope_type {self.rope_type} has no {', '.join(foreign)}; remove it")
        if self.rope_type == "llama3" and (self.high_freq_factor or 0) <= (self.low_freq_factor or 0):
            raise ValueError("high_freq_factor is not above low_freq_factor; write a larger one")
        if self.rope_type == "yarn" and (self.beta_fast or 32) < (self.beta_slow or 1):
            raise ValueError("beta_fast is below beta_slow; write a larger one")
        return self


#: What a job says of it.
Rope = Annotated[RopeScaling, BeforeValidator(_renamed)]
