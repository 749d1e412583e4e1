"""What the applications have in common: commands, reports, prepared input, columns, ranges."""
