"""Other tuners' strategies on a simulated space: `evaluations(space, name, seed, budget)`."""
