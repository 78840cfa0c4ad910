"""The command line: data to stdout, progress and warnings to stderr. Only this package prints."""
