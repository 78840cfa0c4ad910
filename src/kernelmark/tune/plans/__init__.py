"""Plans: which problems of a workload are tuned, and how."""
