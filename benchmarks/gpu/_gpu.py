"""The GPU that a script measures on. Where it is not, the script ends as `kmark` would."""

from __future__ import annotations

import sys

from kernelmark.core.environment import DeviceInfo
from kernelmark.core.errors import UsageError
from kernelmark.runners.targets import find

_HINT = "'kmark list devices' says which devices there are, 'kmark doctor' what is missing"


def gpu_info(name: str = "cuda:0") -> DeviceInfo:
    """What a script records of its device; ends the script where there is no such one."""
    try:
        return find(name)[1]
    except UsageError as error:
        # Not by the CLI's own code: a GPU's host need not have what that imports.
        print(f"kmark: {error.message}\nhint: {error.hint or _HINT}", file=sys.stderr)
        sys.exit(error.exit_code)
