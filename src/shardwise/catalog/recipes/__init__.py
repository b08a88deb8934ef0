"""Job files to begin with: one for each kind of job that people come with, as data."""

import json
import re
from importlib.resources import files

from shardwise.errors import InputError

#: The recipe whose answers are all open.
GENERAL = "general"


def recipes() -> dict[str, str]:
    """The text of every recipe, by name; a text begins with what it is for."""
    found = (file for file in files(__name__).iterdir() if file.name.endswith(".yaml"))
    return {file.name.removesuffix(".yaml"): file.read_text("utf-8") for file in sorted(found, key=lambda f: f.name)}


def job_of(recipe: str, answers: dict[str, str | None]) -> str:
    """A recipe with other values of some keys. `answers`: key -> value, `path` for the data's; None
    keeps the recipe's, an empty one leaves the key out. Raises InputError: no such recipe."""
    known = recipes()
    if recipe not in known:
        raise InputError(f"--recipe {recipe}: there is no such recipe; there are: {', '.join(known)}, and list")
    text = known[recipe]
    for key, value in answers.items():
        if value is not None:
            is_plain = re.fullmatch(r"[\w./-]*[A-Za-z][\w./-]*", value)
            new = f"{key}: {value if is_plain else json.dumps(value)}" if value else ""
            line = rf"(?m)^( *){key}: .*?(?=   #|$)" + ("" if value else r".*\n")
            text = re.sub(line, lambda m, new=new: new and m[1] + new, text)
    changed = any(value is not None for value in answers.values())
    return re.sub(r"(?m)^# Planned: .*\n", "", text) if changed else text
