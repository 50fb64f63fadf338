"""What clients and operators call."""
