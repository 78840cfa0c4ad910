"""The command line. Data goes to stdout, progress and warnings to stderr; only here is printed."""
