"""What bytes look like: pure functions, without I/O, torch or SQL."""
