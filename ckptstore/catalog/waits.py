"""How long transactions of a catalog wait, and are waited for."""

BUSY_SECONDS = 30.0
"""How long a transaction waits for the store's lock."""

IDLE_SECONDS = 60.0
"""How long a writer may be silent while it holds the store's lock; Postgres ends its transaction then."""
