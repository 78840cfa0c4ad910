"""The dashboard: pages of stored runs, their JSON twins, and the API that takes pushed runs."""
