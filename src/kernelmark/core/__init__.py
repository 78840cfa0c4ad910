"""Values, their text and JSON forms, errors and registries: standard library only."""
