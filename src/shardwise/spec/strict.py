"""Base model and number types of the sections of a job file."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"\A[^\x00]+\z")]
Whole = Annotated[int, Field(ge=1, le=10**15)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen; an unknown key or a value of another type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())
