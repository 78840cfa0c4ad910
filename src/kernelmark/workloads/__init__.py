"""Problems to measure: suites, axes, generators, models, selection."""
