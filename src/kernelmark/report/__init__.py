"""Results as rows, tables and text. Nothing here prints or reads a store."""
