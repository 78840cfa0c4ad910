"""Commands that show results to others: plot, report, serve, push, site."""
