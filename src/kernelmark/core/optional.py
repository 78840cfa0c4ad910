"""The mark of fields that were added after documents had been written (see `codec`)."""

from __future__ import annotations

# Metadata key of a field that documents of older versions do not have.
OPTIONAL = "optional"
