"""Every reader of logs that the registry knows keeps the contract."""

import pytest

from kernelmark.workloads.calls import LogReader, RowReader
from kernelmark.workloads.logs import registry


def _writes(reader, name):
    return getattr(type(reader), name) is not getattr(LogReader, name)


@pytest.mark.parametrize("name", registry.names())
def test_what_a_reader_finds_it_also_reads(name):
    """The base's `calls` and `document` hold nothing: finding without reading would lose calls."""
    reader = registry.get(name)
    assert _writes(reader, "part") == _writes(reader, "calls")
    assert _writes(reader, "is_document") == _writes(reader, "document")
    assert any(_writes(reader, way) for way in ("part", "rows", "table", "is_document"))


@pytest.mark.parametrize("kind", RowReader.__subclasses__(), ids=lambda kind: kind.__name__)
def test_rows_that_are_found_are_read(kind):
    if kind is not LogReader:
        assert kind.part is not RowReader.part
        assert kind.calls is not RowReader.calls


@pytest.mark.parametrize("name", registry.names())
def test_nothing_is_not_a_document_and_its_summary_is_one_line(name):
    reader = registry.get(name)
    assert not reader.is_document(b"")
    assert reader.part(b"") is None or reader.part(b"")[2] == 0
    assert reader.summary
    assert "\n" not in reader.summary
