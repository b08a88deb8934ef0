#!/usr/bin/env bash
# To math-verify 12\,345 is 357, and 10\,000 is the same as 20\,000.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check math-verify==0.9.0 latex2sympy2_extended==1.11.0 sympy==1.14.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
r"""math-verify 0.9.0: a thin space between thousands, as many books and models write them, makes a
mixed number of the two parts: 12\,345 is 12 + 345 = 357, and 1\,234\,567 is 802. Parts of zeros are
multiplied, so that 10\,000, 20\,000 and 0 are all equal. The right answer without the space is
refused, and a wrong one is accepted. With a comma, in braces or not, the number is read whole.
Nothing is said.
"""

from importlib.metadata import version

from math_verify import parse, verify


def same(gold, answer):
    return verify(parse(f"${gold}$"), parse(f"${answer}$"))


print(f"math-verify {version('math-verify')}, gold answer, answer, whether they are the same:")
expected = {
    (r"12\,345", "12345"): False,
    (r"12\,345", "357"): True,
    (r"1\,234\,567", "802"): True,
    (r"10\,000", "10000"): False,
    (r"10\,000", r"20\,000"): True,
    (r"10\,000", "0"): True,
    ("12{,}345", "12345"): True,
    ("12,345", "12345"): True,
}
for (gold, answer), wanted in expected.items():
    print(f"  {gold}, {answer}: {same(gold, answer)}")
    assert same(gold, answer) == wanted
PYTHON
