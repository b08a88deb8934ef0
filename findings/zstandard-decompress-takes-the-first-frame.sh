#!/usr/bin/env bash
# zstandard's decompress gives the first frame of several and drops the rest.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check zstandard==0.25.0
cd "$folder"
env -u PYTHONPATH "$folder/venv/bin/python" - <<'PYTHON'
"""zstandard 0.25.0: `decompress`, of the module and of `ZstdDecompressor`, ends at the end of the
first frame. A file that was appended to, two that were joined by `cat`, or what pzstd writes has
several: the rows of the others are missing, and nothing is said. Its `open` and `stream_reader`
give them all, as gzip, bz2 and lzma do for files of theirs that are joined.
"""

import bz2
import gzip
import io
import lzma

import zstandard

parts = [b"".join(b'{"id": %d}\n' % number for number in range(start, start + 3)) for start in (0, 3)]
joined = b"".join(zstandard.compress(part) for part in parts)
with open("rows.jsonl.zst", "wb") as file:
    file.write(joined)
with zstandard.open("rows.jsonl.zst", "rb") as file:
    opened = file.read()
found = {
    "zstandard.decompress": zstandard.decompress(joined),
    "ZstdDecompressor().decompress": zstandard.ZstdDecompressor().decompress(joined),
    "ZstdDecompressor().stream_reader": zstandard.ZstdDecompressor().stream_reader(io.BytesIO(joined)).read(),
    "zstandard.open": opened,
    **{
        f"{kind.__name__}.decompress": kind.decompress(b"".join(kind.compress(part) for part in parts))
        for kind in (gzip, bz2, lzma)
    },
}
print(f"zstandard {zstandard.__version__}, rows of two joined files of three rows each:")
for name, got in found.items():
    print(f"  {name}: {len(got.splitlines())}")
    short = name.startswith(("zstandard.decompress", "ZstdDecompressor().decompress"))
    assert got == (parts[0] if short else parts[0] + parts[1])
PYTHON
