#!/usr/bin/env bash
# numpy reports no error where the last bytes of a file find no room on the disk.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.4.6
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""numpy 2.4.6: `ndarray.tofile` and `numpy.save` of a small array to a full disk return as if all were written; a larger
array raises an OSError, without an errno. What stays in the buffer of a file that C has opened is written when that file
is closed, and the result of closing is not looked at. A writer that must not lose rows writes `memoryview(array)` to a
file that Python has opened, as below.

/dev/full is a disk that is always full (full(4)).
"""

import errno

import numpy

small, large = numpy.arange(100.0), numpy.arange(100_000.0)
small.tofile("/dev/full")
print(f"numpy {numpy.__version__}: tofile of {small.nbytes} bytes to a full disk: no error")
numpy.save("/dev/full", small)
print(f"numpy.save of {small.nbytes} bytes to a full disk: no error")
try:
    large.tofile("/dev/full")
    raise SystemExit("a large array was written to a full disk: the behaviour has changed")
except OSError as error:
    print(f"tofile of {large.nbytes} bytes: {error}; errno {error.errno}")
    assert error.errno is None
try:
    with open("/dev/full", "wb") as file:
        file.write(memoryview(small))
    raise SystemExit("Python's own file took the bytes too")
except OSError as error:
    print(f"a file of Python's: {error}")
    assert error.errno == errno.ENOSPC
PYTHON
