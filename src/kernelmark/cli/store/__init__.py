"""Commands on stored runs: list, show, export, import, delete."""
