"""Reading commits: whole or in part, into new memory or into live state."""
