"""What exists: the only judge, and the only home of SQL."""
