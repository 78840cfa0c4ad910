"""Exit codes of `kmark`; 0 is done, 2 a usage, configuration or store error."""

REGRESSION = 1
SOME_FAILED = 3
NOTHING = 4
INTERRUPTED = 130
