"""Event streams cut anywhere."""
