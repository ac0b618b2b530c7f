"""Lists of value types as Parquet files: one row per value, nested values as Parquet structs and lists, compressed with zstd.

The columns follow from the types, so a new field of a type is a new column with the field's name.  A field that holds a dictionary is JSON
text.  pyarrow is imported only when a table is read or written.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..errors import RunRecordError
from .record_files import finite

if TYPE_CHECKING:
    import pyarrow

MOST_BYTES = 1_000_000_000
"""A table that is larger when uncompressed is refused: a nightly's samples are 10 MB, and a small file can unpack to any size."""
COMPRESSION: dict[str, str | int] = {"compression": "zstd", "compression_level": 9}
"""Options of pyarrow.  Level 19 makes a nightly's results 1 % smaller and takes eight times as long."""


def encode_table(
    rows: Sequence[msgspec.Struct],
    kind: type,
    metadata: Mapping[str, str],
    *,
    left_out: Collection[str] = (),
    single: Collection[str] = (),
) -> bytes:
    """`rows`, values of the type `kind`, as the content of a Parquet file that carries `metadata`.

    Args:
        left_out: dotted paths of fields (`results.accuracy.seed`) that get no column.
        single: dotted paths of fields whose numbers are stored in single precision.
    """
    import pyarrow
    import pyarrow.parquet

    arrow = _arrow_type(_description(kind), "", frozenset(left_out), frozenset(single))
    values = [_to_columns(msgspec.to_builtins(row), kind) for row in rows]
    table = pyarrow.Table.from_struct_array(pyarrow.array(values, type=arrow)).replace_schema_metadata(dict(metadata))
    sink = pyarrow.BufferOutputStream()
    leaves = dict(_leaves(arrow))
    numbers = [path for path, leaf in leaves.items() if pyarrow.types.is_floating(leaf)]
    others = [path for path in leaves if path not in numbers]
    # The bytes of floating-point numbers lie in one stream per place: 41 nights of history are a quarter smaller than with a dictionary.
    pyarrow.parquet.write_table(table, sink, use_byte_stream_split=numbers, use_dictionary=others, **COMPRESSION)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _leaves(kind: pyarrow.DataType, path: str = "") -> Iterator[tuple[str, pyarrow.DataType]]:
    """The columns that Parquet makes of an Arrow type, with their paths."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        for field in kind:
            yield from _leaves(field.type, f"{path}.{field.name}" if path else field.name)
    elif pyarrow.types.is_list(kind):
        yield from _leaves(kind.value_type, f"{path}.list.element")
    else:
        yield path, kind


def decode_table(content: bytes, kind: type, where: Path, *, remedy: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of a Parquet file as plain dictionaries that `msgspec.convert` turns into values of `kind`, and the file's metadata.

    A column that the file lacks is absent from the dictionaries; a column that `kind` does not know stays in them.

    Args:
        where: the file, for messages.
        remedy: what to do about a file that cannot be read, for messages.

    Raises:
        RunRecordError: the file is truncated, garbled, or no Parquet, or a column that should hold JSON text does not.
    """
    import pyarrow

    try:
        table = read_parquet(content)
        metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items() if not key.startswith(b"ARROW")}
        rows = [_from_columns(row, kind) for row in table.to_pylist()]
    except (pyarrow.ArrowException, msgspec.DecodeError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RunRecordError(f"{where}: truncated or garbled ({len(content)} bytes): {error}; {remedy}") from error
    return rows, metadata


def read_parquet(content: bytes) -> pyarrow.Table:
    """The table of a Parquet file, read by this thread alone.

    Raises:
        pyarrow.ArrowException, OSError: it is truncated, garbled or no Parquet.
        ValueError: it would take more than `MOST_BYTES` of memory.
    """
    import pyarrow
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content))
    groups = [file.metadata.row_group(place) for place in range(file.metadata.num_row_groups)]
    size = max(sum(group.total_byte_size for group in groups), file.metadata.num_rows)
    if size > MOST_BYTES:
        raise ValueError(f"it holds {size / 1e6:.0f} MB, and no record has more than {MOST_BYTES / 1e6:.0f} MB")
    return file.read(use_threads=False)


def _arrow_type(info: Any, path: str, left_out: frozenset[str], single: frozenset[str]) -> pyarrow.DataType:
    """The Arrow type for a type as msgspec describes it; `path` is the dotted path of the field that has it."""
    import pyarrow

    inspect = msgspec.inspect
    match info:
        case inspect.UnionType():
            (only,) = [one for one in info.types if not isinstance(one, inspect.NoneType)]
            return _arrow_type(only, path, left_out, single)
        case inspect.StructType():
            fields = [(field, f"{path}.{field.encode_name}" if path else field.encode_name) for field in info.fields]
            kept = [(field, place) for field, place in fields if place not in left_out]
            return pyarrow.struct([(field.encode_name, _arrow_type(field.type, place, left_out, single)) for field, place in kept])
        case inspect.TupleType():
            (item,) = {type(one): one for one in info.item_types}.values()
            return pyarrow.list_(_arrow_type(item, path, left_out, single))
        case inspect.ListType() | inspect.VarTupleType():
            return pyarrow.list_(_arrow_type(info.item_type, path, left_out, single))
        case inspect.FloatType() if path in single:
            return pyarrow.float32()
    plain = {inspect.FloatType: "float64", inspect.IntType: "int64", inspect.BoolType: "bool"}
    text = dict.fromkeys((inspect.StrType, inspect.EnumType, inspect.DictType), "string")
    return pyarrow.type_for_alias((plain | text)[type(info)])


@functools.cache
def _description(kind: type) -> Any:
    """`kind` as msgspec describes it, which takes longer than to read a small table."""
    return msgspec.inspect.type_info(kind)


def _to_columns(value: Any, kind: type) -> Any:
    """`value`, built of plain types, with every dictionary that is a field as JSON text."""
    return _mapped(value, _places(kind), lambda found: msgspec.json.encode(finite(found)).decode())


def _from_columns(value: Any, kind: type) -> Any:
    """The inverse of `_to_columns`."""
    return _mapped(value, _places(kind), msgspec.json.decode)


def _mapped(value: Any, places: Any, change: Any) -> Any:
    if value is None or places is None:
        return value
    if places is True:
        return change(value)
    if isinstance(places, dict):
        return {name: _mapped(entry, places.get(name), change) for name, entry in value.items()}
    return [_mapped(entry, places[0], change) for entry in value]


@functools.cache
def _places(kind: type) -> Any:
    """Where a value of `kind` has dictionaries: None nowhere, True here, {field: places} in a struct, [places of an item] in a list."""
    return _places_in(_description(kind))


def _places_in(info: Any) -> Any:
    inspect = msgspec.inspect
    match info:
        case inspect.DictType():
            return True
        case inspect.UnionType():
            several = [places for one in info.types if (places := _places_in(one)) is not None]
            assert len(several) < 2, f"{info}: which of them a value is, its columns do not say"
            return several[0] if several else None
        case inspect.StructType():
            found = {field.encode_name: _places_in(field.type) for field in info.fields}
            return {name: places for name, places in found.items() if places is not None} or None
        case inspect.ListType() | inspect.VarTupleType():
            return None if (item := _places_in(info.item_type)) is None else [item]
    return None
