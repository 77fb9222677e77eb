"""Finding what is damaged or lost."""
