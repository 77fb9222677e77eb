"""Making commits: at once, or while training goes on."""
