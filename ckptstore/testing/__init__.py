"""What a new storage or catalog is tested with."""
