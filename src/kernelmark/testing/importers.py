"""Contract tests of importers. A plugin's tests inherit them:

class TestMine(ImporterContract):
    importer = "mine"             # its name in the registry
    file = "results.txt"          # the name of a small file as the tool writes it
    text = "gemm 64x64x64 12.5 us\\n"
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import ClassVar

import pytest

from kernelmark.core.errors import KernelmarkError
from kernelmark.core.result import ResultSet, Status
from kernelmark.workloads import importers
from kernelmark.workloads.importers import Importer, Overrides


class ImporterContract:
    """Base class of an importer's tests; a subclass sets a sample."""

    importer: ClassVar[str]
    file: ClassVar[str]
    text: ClassVar[str]

    @property
    def the_importer(self) -> Importer:
        return importers.registry.get(self.importer)

    def read(self, folder: Path, text: str) -> ResultSet:
        path = folder / self.file
        path.write_text(text, encoding="utf-8")
        return importers.read(path, Overrides(), self.importer)

    def test_says_what_it_is(self) -> None:
        importer = self.the_importer
        assert importer.summary
        assert "\n" not in importer.summary
        facts = importer.facts
        assert all((importer.method, facts.versions, facts.exactness, facts.checked))

    def test_only_this_one_recognizes_the_sample(self) -> None:
        head = self.text.encode()
        importers_known = map(importers.registry.get, importers.registry.names())
        assert [item.name for item in importers_known if item.recognizes(self.file, head)] == [
            self.the_importer.name
        ]
        assert not self.the_importer.recognizes(self.file, b"\0 something else \xff")

    def test_reads_the_sample(self, tmp_path: Path) -> None:
        results = self.read(tmp_path, self.text)
        assert any(result.status is Status.OK for result in results.results)
        again = importers.read(tmp_path / self.file, Overrides(), self.importer)
        assert again == results, "the same file is the same run"

    def test_a_cut_file_is_read_or_refused(self, tmp_path: Path) -> None:
        """Check that a truncated file raises no other exception, wherever it was cut."""
        for end in range(1, len(self.text)):
            with contextlib.suppress(KernelmarkError):
                self.read(tmp_path, self.text[:end])

    def test_an_error_names_the_file(self, tmp_path: Path) -> None:
        """Check also errors that an op raises, for a size or dtype."""
        nameless = {}
        for word in re.finditer(r"[^\s,\"]+", self.text):
            damaged = f"{self.text[: word.start()]}?{self.text[word.end() :]}"
            try:
                self.read(tmp_path, damaged)
            except KernelmarkError as error:
                if self.file not in error.message:
                    nameless[damaged] = error.message
        assert not nameless

    @pytest.mark.parametrize("other", ["", "{", "no such thing\n", "\x00\x01"])
    def test_another_file_is_refused(self, tmp_path: Path, other: str) -> None:
        with pytest.raises(KernelmarkError):
            self.read(tmp_path, other)
