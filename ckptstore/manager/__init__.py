"""When to save, what to keep, and a last commit before the machine is taken away."""
