"""Workers, and what drives them: from cases to stored results."""
