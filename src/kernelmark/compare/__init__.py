"""Two runs side by side: pairs of results, rules that judge them, verdicts. Nothing here reads a
store or prints; results go in, verdicts come out."""
