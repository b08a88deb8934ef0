"""Types of numbers and text, the base of job file sections, and dataclasses made of plain data."""

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

T = TypeVar("T")


def _at_home(path: str) -> str:
    try:
        return str(Path(path).expanduser()) if path.startswith("~") else path
    except RuntimeError:
        user = Path(path).parts[0]
        raise ValueError(f"{path} begins with the home of {user}, who is not known here; write it in full") from None


Text = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"\A[^\x00]+\z")]
#: Of a file or folder: a home folder in place of a `~` at its beginning.
AT_HOME = AfterValidator(_at_home)
Place = Annotated[Text, AT_HOME]
Whole = Annotated[int, Field(ge=1, le=10**15)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen; an unknown key or a value of another type is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


#: Of what nothing executes, and all inside it: a later version may have added keys.
OPEN = ConfigDict(extra="ignore", strict=True)
#: Of what is executed, likewise: a key that is not known is a mistake.
EXACT = ConfigDict(extra="forbid", strict=True)


@cache
def adapter(cls: type[Any]) -> TypeAdapter[Any]:
    """What makes such a dataclass of JSON."""
    return TypeAdapter(cls)


def from_plain(cls: type[T], data: Any) -> T:
    """A dataclass, with those inside it, from what `dataclasses.asdict` and JSON made of it;
    unknown keys are ignored. Raises TypeError: the data is not such a dataclass."""
    try:
        return adapter(cls).validate_json(json.dumps(data))
    except ValidationError as error:
        raise TypeError(str(error)) from None
