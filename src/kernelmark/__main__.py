"""`python -m kernelmark` is `kmark`."""

from __future__ import annotations

from kernelmark.cli.main import main

if __name__ == "__main__":
    main()
