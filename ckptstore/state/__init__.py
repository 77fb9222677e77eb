"""What a user has: an app state as logical paths and leaves, and back, exactly. Knows no storage and no catalog."""
