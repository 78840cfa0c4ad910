"""Records: journals, outcomes and result files of a tuning folder, and the progress of plans."""
