"""The `data` section of a job: the rows to train on, and how they become token sequences."""

from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, Field, model_validator

from shardwise.spec.job.strict import Place, Positive, Share, Strict, Text, Whole

TrainOn = Literal["auto", "assistant", "completion", "all"]
OverLong = Literal["error", "drop", "truncate"]
Rendered = Literal["auto"] | bool
RowFormat = Literal[
    "auto",
    "messages",
    "conversations",
    "instruction",
    "prompt_completion",
    "question_answer",
    "query_response",
    "text",
    "preference",
    "unpaired_preference",
]


ColumnName = (
    Literal["messages", "tools", "conversations", "system", "instruction", "input", "output"]
    | Literal["prompt", "completion", "question", "answer", "query", "response", "text"]
    | Literal["chosen", "rejected", "label"]
)


class SourceSpec(Strict):
    """One data set.

    Attributes:
        path: a file (JSONL, JSON, CSV, Parquet, Arrow, plain text), a folder of such files, or a
            hub id.
        weight: how often its rows are seen per epoch; 0.5 is half of them, another half each epoch.
        split: of a hub data set or, by the names of its files (`train-1.jsonl`, `test/a.jsonl`), of
            a folder.
        name: configuration of a hub data set.
        format: how rows are read; `auto` recognises them by their columns.
    """

    path: Place
    weight: Positive = 1.0
    split: str = "train"
    name: str | None = None
    format: RowFormat = "auto"


def _as_sources(value: Any) -> Any:
    """`path` may be one path, or a list of paths and of {path, weight, ...}."""
    items: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
    return [{"path": item} if isinstance(item, str) else item for item in items]


class DataSpec(Strict):
    """The rows to train on and how they become token sequences.

    Attributes:
        path: the sources; none only for planning, with `num_rows` stated.
        columns: {column of a row format: its name in the files}, for rows under other names.
        max_length: tokens per sequence at most.
        packing: several rows in one sequence, apart in attention and positions; `auto`: where the
            model's code keeps them apart, else rows are padded, which is said.
        train_on: which tokens count in the loss; `auto` is the assistant's for chats, the
            completion for pairs, all for plain text.
        over_long: what happens to rows longer than `max_length`.
        eval_path: rows to evaluate on.
        eval_fraction: or the share of the training rows set aside for it.
        chat_template: path of a Jinja file that replaces the tokenizer's own template.
        rendered: whether prompts of pairs are text that was put into the chat template before and
            is taken as it is; `auto` looks for the template's marks at their ends.
        shuffle: a new order each epoch, from (seed, epoch).
        num_rows: for planning without data.
    """

    path: Annotated[list[SourceSpec], BeforeValidator(_as_sources)] = Field(default_factory=list[SourceSpec])
    columns: dict[ColumnName, Text] = Field(default_factory=dict[ColumnName, Text])
    max_length: Whole = 1024
    packing: bool | Literal["auto"] = False
    train_on: TrainOn = "auto"
    over_long: OverLong = "error"
    eval_path: Annotated[list[SourceSpec], BeforeValidator(_as_sources)] = Field(default_factory=list[SourceSpec])
    eval_fraction: Share = 0.0
    chat_template: Place | None = None
    rendered: Rendered = "auto"
    shuffle: bool = True
    num_rows: Whole | None = None

    @model_validator(mode="after")
    def _one_source_of_evaluation(self) -> Self:
        if self.eval_path and self.eval_fraction:
            raise ValueError("eval_path and eval_fraction exclude each other; keep one")
        return self
