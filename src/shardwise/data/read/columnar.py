"""Parquet and Arrow files: columns, rows of each group, and the rows of some groups."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

BATCH_ROWS = 1024

#: How a file of each kind begins; Arrow's are written in two ways, as a file and as a stream.
MAGIC = {"parquet": (b"PAR1",), "arrow": (b"ARROW1", b"\xff\xff\xff\xff")}


def groups(path: str, *, kind: str) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """The columns' names; rows and bytes of each group or batch. Raises ArrowException, OSError."""
    import pyarrow.parquet as pq

    if kind == "arrow":
        with _arrow(path) as (schema, batches):
            return tuple(schema.names), [(batch.num_rows, batch.nbytes) for batch in batches]
    with pq.ParquetFile(path) as opened:
        metadata, names = opened.metadata, tuple(opened.schema_arrow.names)
    found = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    return names, [(group.num_rows, group.total_byte_size) for group in found]


def read_groups(path: str, *, kind: str, start: int, stop: int, columns: Sequence[str]) -> Iterator[Any]:
    """The groups' rows as record batches. Raises ArrowException, OSError, and as decoding does."""
    import pyarrow.parquet as pq

    if kind == "arrow":
        with _arrow(path) as (_, batches):
            for number, batch in enumerate(batches):
                if start <= number < stop:
                    yield batch.select(list(columns))
                elif number >= stop:
                    return
        return
    with pq.ParquetFile(path) as file:
        yield from file.iter_batches(
            batch_size=BATCH_ROWS, row_groups=list(range(start, stop)), columns=list(columns), use_threads=False
        )


@contextmanager
def _arrow(path: str) -> Iterator[tuple[Any, Iterator[Any]]]:
    """Schema and batches of an Arrow file, mapped into memory: only what is asked for is read."""
    import pyarrow as pa

    with pa.memory_map(path) as source:
        if source.read(6) == b"ARROW1":
            with pa.ipc.open_file(source) as opened:
                yield opened.schema, (opened.get_batch(number) for number in range(opened.num_record_batches))
        else:
            source.seek(0)
            with pa.ipc.open_stream(source) as stream:
                yield stream.schema, iter(stream)
