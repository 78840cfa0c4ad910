"""This process on its host: signals, child processes, private folders, caches on disk."""
