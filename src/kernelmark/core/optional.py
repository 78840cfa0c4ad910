"""The mark of fields that came later than the documents that hold them (see `codec`)."""

from __future__ import annotations

# Marks a field of a value that documents of older versions do not have.
OPTIONAL = "optional"
