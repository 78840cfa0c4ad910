"""Records: what a tuning folder holds of a search, and how far each plan is."""
