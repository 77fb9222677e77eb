"""What several ranks do together: who has what, who stores it, and the one commit that comes of it."""
